"""What a check costs, printed by ``python benchmarks/check_cost.py [STUDY]``.

The processor seconds of `sweeper check` with all of its processes, against 20, and its duration, against half a
minute; and those of a check of MobileNetV2, whose graphs take most of the time, against the same short epochs
trained once by ``fit``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from ratios import Ratio, alternate

STUDY = str(Path(__file__).parents[1] / "studies" / "digits_learning_rate.py")
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "3"))
PROCESSOR_SECONDS = 20.0
HALF_A_MINUTE = 30.0


LARGE = str(Path(__file__).with_name("mobilenet_study.py"))
PLAIN = """
import sys
import keras
from mobilenet_study import build_model, load_data
from sweeper.checks.check import SHORT_EPOCHS

class Trial:
    def suggest_float(self, *_bounds, **_options):
        return 1e-3

keras.utils.set_random_seed(0)
data = load_data(None)
build_model(Trial()).fit(
    *data.train, batch_size=data.batch_size, epochs=SHORT_EPOCHS, validation_data=data.validation, verbose=0
)
"""


def check(study: str) -> list[str]:
    return [sys.executable, "-m", "sweeper", "check", study, "--workers", "2"]


def measured(words: list[str]) -> tuple[float, float]:
    """Return the processor seconds of a command with all of its processes, and its duration."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        words,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, time.monotonic() - began


def main(study: str) -> int:
    spent, took = zip(*(measured(check(study)) for _ in range(ROUNDS)), strict=True)
    plain, large = alternate(
        lambda: measured([sys.executable, "-c", PLAIN])[0],
        lambda: measured(check(LARGE))[0],
        ROUNDS,
    )
    ratios = [
        Ratio(
            f"1. a check's processor seconds against {PROCESSOR_SECONDS:.0f}",
            list(spent),
            [PROCESSOR_SECONDS] * ROUNDS,
            "s",
            1.0,
            at_most=True,
        ),
        Ratio(
            "2. a whole check against half a minute",
            list(took),
            [HALF_A_MINUTE] * ROUNDS,
            "s",
            1.0,
            at_most=True,
        ),
        Ratio("3. a check of MobileNetV2 against its short epochs by fit", large, plain, "s", 4.0),
    ]
    for ratio in ratios:
        print(ratio.line())
    return 0 if all(ratio.holds for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else STUDY))
