"""What a promotion costs: pause, decision, claim and resume, against starting a trial.

Usage: ``python benchmarks/promotion_cost.py [TRIALS [ROUNDS]]``; 16 and 3 by default. One worker, fresh
processes forked from the fork server, SQLite, the network of `digits`.

One study runs trials of one epoch; the other runs as many to a rung after one epoch and promotes every
second one, which trains one more. What the second takes longer, divided by the promotions, is set
against what the first takes a trial. Start-up and TensorFlow's import are in neither.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from digits import build_model, load_data
from ratios import Ratio, alternate

from sweeper import Halving, Study
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.run import run_sweep

BOUND = 1.3

both: dict[str, Any] = {
    "model": build_model,
    "data": load_data,
    "objective": "val_loss",
    "sampler": "random",
    "threads": 2,
    "audit": "off",
    "trials": 2,
}
starts = Study(name="starts", epochs=1, **both)
promotions = Study(name="promotions", epochs=2, budget=Halving(factor=2), **both)


def seconds(study: str, trials: int) -> float:
    """Of one worker, from the first claim to the last result."""
    with tempfile.TemporaryDirectory() as directory:
        runs = Path(directory)
        results = run_sweep(
            RunRequest(
                WorkerOptions(1, f"sqlite:///{runs / 'sweeper.db'}", runs, isolation="fork"),
                lambda _event: None,
                source=f"{__file__}:{study}",
                trials=trials,
            )
        )
    attempts = [attempt for trial in results.trials for attempt in trial.attempts]
    expected = trials if study == "starts" else trials + trials // 2
    assert len(attempts) == expected, (len(attempts), expected)
    begun = min(attempt.started_at for attempt in attempts)
    ended = max(attempt.ended_at or begun for attempt in attempts)
    return (ended - begun).total_seconds()


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with_promotions, without = alternate(
        partial(seconds, "promotions", trials), partial(seconds, "starts", trials), rounds
    )
    pairs = list(zip(with_promotions, without, strict=True))
    promotion = [(longer - plain) / (trials // 2) for longer, plain in pairs]
    start = [plain / trials for _, plain in pairs]
    what = f"a promotion against a trial's start, {trials} trials"
    print(Ratio(what, promotion, start, "s", BOUND, at_most=True).line())


if __name__ == "__main__":
    main()
