"""Ratios of the main job, printed by one command: ``python benchmarks/main_job.py``.

1. A trial in its own forked process against the same trial in one warm process: of 5 epochs, as in
   the sweep of 3, and of 30, as in the README's study. A process costs the same once, whatever the
   trial's length.
2. Our training loop against ``model.fit``, without and with a callback that listens to batches.
3. A whole sweep of 16 and one of 64 trials with two workers against the same in one process under
   Optuna, in two processes of joblib's loky, and in a process for each trial under Ray.
   ``python benchmarks/main_job.py sweeps`` measures these alone.

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
from pathlib import Path

from ratios import Ratio

HERE = Path(__file__).parent
STUDY = str(HERE / "digits.py")
SHORT, WHOLE = 5, 30
"""Epochs of a trial in the sweep below, and in ``studies/digits_learning_rate.py``."""
BOUNDS = {"optuna": 2.5, "loky": 1.5, "ray": 6.0}
"""How many times as long others should take, by the script ``…_sweep.py``."""
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "9"))


def assignment(directory: Path, number: int, epochs: int):
    from dataclasses import replace

    from sweeper.definition.loading import load_definition
    from sweeper.run.protocol.messages import Assignment

    return Assignment(
        replace(load_definition(STUDY).settings(), epochs=epochs, threads=1),
        number=number,
        attempt=1,
        files=str(directory / f"files-{number}"),
        log=str(directory / f"log-{number}.txt"),
        checkpoints=(str(directory / f"checkpoints-{number}"),),
    )


class WarmProcess:
    """Trials in one process, one after another; see ``warm_process.py``."""

    def __init__(self, between: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "warm_process.py"), STUDY, between],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def trial(self, directory: Path, number: int, epochs: int) -> float:
        from pydantic import TypeAdapter

        from sweeper.run.protocol.messages import Assignment

        given = TypeAdapter(Assignment).dump_json(assignment(directory, number, epochs)).decode()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{given}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def fresh_against_warm(directory: Path, epochs: int, rounds: int) -> list[Ratio]:
    from sweeper.run.launch.launchers import WarmServer
    from sweeper.run.launch.sources import target_source
    from sweeper.run.protocol.messages import Answered, Propose, Suggest

    directory.mkdir()
    numbers = iter(range(10_000))
    server = WarmServer(target_source(STUDY))
    server.loaded()
    inline, bare = WarmProcess("inline"), WarmProcess("bare")

    def fresh_trial() -> float:
        started = time.perf_counter()
        process = server.launch(assignment(directory, next(numbers), epochs))
        while True:
            try:
                message = process.channel.receive()
            except EOFError:
                break
            if isinstance(message, Suggest):
                process.channel.send(Answered(0.001))
            if isinstance(message, Propose):
                process.channel.send(Answered(True))
        status = process.wait(10)
        assert status is not None
        assert status.code == 0
        return time.perf_counter() - started

    fresh: list[float] = []
    cleaned: list[float] = []
    uncleaned: list[float] = []
    for turn in range(rounds + 3):
        times = (
            fresh_trial(),
            inline.trial(directory, next(numbers), epochs),
            bare.trial(directory, next(numbers), epochs),
        )
        if turn >= 3:
            for times_of, seconds in zip((fresh, cleaned, uncleaned), times, strict=True):
                times_of.append(seconds)
    inline.close()
    bare.close()
    server.close()
    trial = f"a trial ({epochs} epochs, a checkpoint each) in its own process, against"
    return [
        Ratio(f"1. {trial} isolation='inline'", fresh, cleaned, "s"),
        Ratio(
            f"1. {trial} one process with nothing cleaned up between trials",
            fresh,
            uncleaned,
            "s",
            1.1,
            at_most=True,
        ),
    ]


def sweep_against_others(directory: Path, trials: int) -> list[Ratio]:
    def timed(command: list[str]) -> float:
        started = time.perf_counter()
        environment = {**os.environ, "SWEEPER_BENCHMARK_TRIALS": str(trials)}
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        return time.perf_counter() - started

    def empty(name: str) -> str:
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir()
        return str(directory / name)

    def ours() -> float:
        run = [sys.executable, "-m", "sweeper", "run", STUDY, "--workers", "2"]
        runs = empty("ours")
        words = [*run, "--trials", str(trials), "--runs-dir", runs]
        return timed([*words, "--storage", f"sqlite:///{runs}/sweeper.db"])

    def theirs(name: str) -> float:
        return timed([sys.executable, str(HERE / f"{name}_sweep.py"), empty(name)])

    rounds = [(*map(theirs, BOUNDS), ours()) for _ in range(max(3, ROUNDS // 3))]
    *others, mine = map(list, zip(*rounds, strict=True))
    return [
        Ratio(
            f"3. {name} and model.fit against us with two workers, {trials} trials",
            *(seconds, mine, "s", bound),
            at_most=False,
        )
        for (name, bound), seconds in zip(BOUNDS.items(), others, strict=True)
    ]


def trials_and_loop(directory: Path) -> list[Ratio]:
    ratios = fresh_against_warm(directory / "short", SHORT, 2 * ROUNDS)
    ratios += fresh_against_warm(directory / "whole", WHOLE, ROUNDS)
    loop = subprocess.run(
        [sys.executable, str(HERE / "loop_speed.py"), str(ROUNDS)],
        check=True,
        capture_output=True,
        text=True,
    )
    return ratios + [Ratio(**values) for values in json.loads(loop.stdout.splitlines()[-1])]


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        ratios = [] if "sweeps" in sys.argv else trials_and_loop(Path(temporary))
        for trials in (16, 64):
            ratios += sweep_against_others(Path(temporary), trials)
    for ratio in ratios:
        print(ratio.line())
    return 0 if all(ratio.holds for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
