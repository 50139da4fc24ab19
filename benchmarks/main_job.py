"""Three ratios of the main job, printed by one command: ``python benchmarks/main_job.py``.

1. A trial in its own forked process against the same trial in one warm process.
2. Our training loop against ``model.fit``, without and with a callback that listens to batches.
3. A whole sweep of 16 trials with two workers against the same in one process under Optuna.

Each side is measured in turn with the other, and medians are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from ratios import Ratio, alternate

HERE = Path(__file__).parent
STUDY = str(HERE / "digits.py")
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "9"))


def assignment(directory: Path, number: int):
    from sweeper.execution.channel import Assignment

    return Assignment(
        study="benchmark",
        number=number,
        attempt=1,
        seed=0,
        epochs=5,
        objective="val_accuracy",
        deterministic=True,
        threads=1,
        checkpoint_every="epoch",
        files=str(directory / f"files-{number}"),
        log=str(directory / f"log-{number}.txt"),
        checkpoints=(str(directory / f"checkpoints-{number}"),),
    )


def fresh_against_warm(directory: Path) -> Ratio:
    from sweeper.execution.channel import Suggest, Suggested
    from sweeper.execution.isolation import ForkLauncher, WarmServer
    from sweeper.execution.sources import target_source

    numbers = iter(range(10_000))
    server = WarmServer(target_source(STUDY))
    server.loaded()
    launcher = ForkLauncher(server)
    warm = subprocess.Popen(
        [sys.executable, str(HERE / "warm_process.py"), STUDY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def fresh_trial() -> float:
        started = time.perf_counter()
        process = launcher.launch(assignment(directory, next(numbers)))
        while True:
            try:
                message = process.channel.receive()
            except EOFError:
                break
            if isinstance(message, Suggest):
                process.channel.send(Suggested(0.001))
        status = process.wait(10)
        assert status is not None
        assert status.code == 0
        return time.perf_counter() - started

    def warm_trial() -> float:
        warm.stdin.write(json.dumps(asdict(assignment(directory, next(numbers)))) + "\n")
        warm.stdin.flush()
        return float(warm.stdout.readline())

    for _ in range(3):
        fresh_trial(), warm_trial()
    fresh, same_process = alternate(fresh_trial, warm_trial, 2 * ROUNDS)
    warm.stdin.close()
    warm.wait()
    launcher.close()
    return Ratio(
        "1. a trial (5 epochs, a checkpoint each) in its own process, against one warm process",
        fresh,
        same_process,
        "s",
        1.1,
        at_most=True,
    )


def loop_against_fit() -> list[Ratio]:
    """Runs in a process of its own: see ``__main__``."""
    import keras
    from digits import BATCH, network, x, y

    from sweeper import Data
    from sweeper.execution.devices import configure_tensorflow
    from sweeper.training.loop import TrainingLoop, TrainingPlan
    from sweeper.training.randomness import TrialSeeds

    configure_tensorflow(threads=1, deterministic=True)
    keras.utils.set_random_seed(0)
    epochs, steps = 20, -(-len(x) // BATCH) * 20

    class Silent:
        def started(self, position, steps_per_epoch): ...
        def steps_done(self, position): ...
        def epoch_ended(self, epoch, step, logs, seconds): ...
        def keep(self, snapshot): ...
        def steps_until_due(self, position):
            return 1 << 30

        def is_due(self, position):
            return False

        def stop_requested(self):
            return False

    class PerBatch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1

    def ours(callbacks) -> float:
        data = Data(train=(x, y), batch_size=BATCH)
        model = network(0.001)
        order = TrialSeeds(0, 0).sequence("order")
        plan = TrainingPlan(model, data, callbacks(), epochs, None, order)
        loop = TrainingLoop(plan, Silent())
        started = time.perf_counter()
        loop.run()
        return steps / (time.perf_counter() - started)

    def fit(callbacks) -> float:
        model = network(0.001)
        model.fit(x[:64], y[:64], batch_size=BATCH, epochs=1, verbose=0)
        started = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=callbacks())
        return steps / (time.perf_counter() - started)

    ratios = []
    for what, callbacks, bound in (
        ("2a. our loop against model.fit, no callback listens to batches", list, 3.0),
        ("2b. our loop against model.fit, with a per-batch callback", lambda: [PerBatch()], 1.5),
    ):
        mine, theirs = alternate(lambda c=callbacks: ours(c), lambda c=callbacks: fit(c), ROUNDS)
        ratios.append(Ratio(what, mine, theirs, "steps/s", bound, at_most=False))
    return ratios


def sweep_against_optuna(directory: Path) -> Ratio:
    def timed(command: list[str]) -> float:
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started

    def ours() -> float:
        place = directory / "ours"
        shutil.rmtree(place, ignore_errors=True)
        run = [sys.executable, "-m", "sweeper", "run", STUDY, "--workers", "2"]
        return timed([*run, "--runs-dir", str(place)])

    def theirs() -> float:
        place = directory / "optuna"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return timed([sys.executable, str(HERE / "optuna_sweep.py"), str(place)])

    mine, optuna = alternate(theirs, ours, max(3, ROUNDS // 3))
    return Ratio(
        "3. Optuna and model.fit in one process, against us with two workers, 16 trials",
        mine,
        optuna,
        "s",
        2.0,
        at_most=False,
    )


def main() -> int:
    if sys.argv[1:] == ["loop"]:
        print(json.dumps([asdict(ratio) for ratio in loop_against_fit()]))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        ratios = [fresh_against_warm(Path(temporary))]
        loop = subprocess.run(
            [sys.executable, __file__, "loop"], check=True, capture_output=True, text=True
        )
        ratios += [Ratio(**values) for values in json.loads(loop.stdout.splitlines()[-1])]
        ratios.append(sweep_against_optuna(Path(temporary)))
    for ratio in ratios:
        print(ratio.line())
    return 0 if all(ratio.holds for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
