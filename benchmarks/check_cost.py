"""What a check costs, printed by ``python benchmarks/check_cost.py [STUDY]``.

1. Its work, start-up aside, against the training steps that it runs: what is spent on looking
   (digests after every step and callback, walks, comparisons, the checkpoint) beside what is trained.
   Both are added up over its processes.
2. The whole of it, start-up included, against half a minute.

Start-up is importing TensorFlow and the study, building models and tracing their steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ratios import Ratio

STUDY = str(Path(__file__).parents[1] / "studies" / "digits_learning_rate.py")
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "3"))
HALF_A_MINUTE = 30.0


def main(study: str) -> int:
    from sweeper.checks.check import check_study

    reports = [check_study(study, workers=2) for _ in range(ROUNDS)]
    assert all(report.holds for report in reports), reports[0].findings
    seconds = [report.seconds or {} for report in reports]
    ratios = [
        Ratio(
            f"1. a check's work against its {reports[0].steps} training steps, start-up aside",
            [each["work"] for each in seconds],
            [each["steps"] for each in seconds],
            "s",
            4.0,
            at_most=True,
        ),
        Ratio(
            "2. a whole check against half a minute",
            [each["total"] for each in seconds],
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
