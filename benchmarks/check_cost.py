"""What a check costs, printed by ``python benchmarks/check_cost.py [STUDY]``.

The processor seconds of `sweeper check` with all of its processes, against 20, and its duration, against half a minute.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from ratios import Ratio

STUDY = str(Path(__file__).parents[1] / "studies" / "digits_learning_rate.py")
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "3"))
PROCESSOR_SECONDS = 20.0
HALF_A_MINUTE = 30.0


def measured(study: str) -> tuple[float, float]:
    """Return the processor seconds and the duration of one check."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    words = [sys.executable, "-m", "sweeper", "check", study, "--workers", "2"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, time.monotonic() - began


def main(study: str) -> int:
    spent, took = zip(*(measured(study) for _ in range(ROUNDS)), strict=True)
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
    ]
    for ratio in ratios:
        print(ratio.line())
    return 0 if all(ratio.holds for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else STUDY))
