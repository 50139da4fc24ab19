"""False and true positives of verdicts on configurations, where the metric is an accuracy in steps of 1/n.

Run as ``python benchmarks/verdict_levels.py [ROUNDS]``. Each repeat of a configuration is a binomial
accuracy on n samples. The first table has the shares of studies of equal configurations in which one is
called better, the largest of which must be at most 6%; "before" counts a spread of 0 as certainty. The
second has the shares in which a configuration is called better that is better by one standard deviation
of the paired differences.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sweeper.records import comparisons

SAMPLES = (50, 200, 1000)
ACCURACIES = (0.9, 0.96, 0.99)
REPEATS = (2, 3, 5, 10)
CONFIGURATIONS = (2, 4, 8)
MOST = 0.06


@contextmanager
def without_steps() -> Iterator[None]:
    """Context manager for the former rule: nothing but the spread of the differences counts."""
    floor, p = comparisons.resolution_of, comparisons._p

    def certain(differences: list[float], _: float) -> float | None:
        spread = comparisons.spread_of(differences)
        return 0.0 if spread == 0 and any(differences) else p(differences, 0.0)

    comparisons.resolution_of = lambda values: 0.0  # noqa: ARG005 - the same name
    comparisons._p = certain  # type: ignore[assignment]
    try:
        yield
    finally:
        comparisons.resolution_of, comparisons._p = floor, p


def share_called_better(tables: np.ndarray, better: int | None = None) -> float:
    """Return the share of ``tables`` (repeat by configuration) with a verdict; of one, if it is named."""
    called = 0
    for table in tables:
        values = {c: dict(enumerate(table[:, c].tolist())) for c in range(table.shape[1])}
        found = comparisons.compare(values, "maximize", planned=False).values()
        called += any(
            each.verdict == "better" and each.leader == (each.leader if better is None else better)
            for each in found
        )
    return called / len(tables)


def drawn(rounds: int, cell: tuple[int, float, int, int], advantage: float = 0.0) -> np.ndarray:
    """Return accuracies of ``rounds`` studies; the last configuration is better by ``advantage``."""
    samples, accuracy, repeats, configurations = cell
    chances = np.full(configurations, accuracy)
    spread = np.sqrt(2 * accuracy * (1 - accuracy) / samples)
    chances[-1] = min(1.0, accuracy + advantage * spread)
    random = np.random.default_rng([samples, round(100 * accuracy), repeats, configurations])
    return random.binomial(samples, chances, (rounds, repeats, configurations)) / samples


def main() -> None:
    """Print both tables; end with an error if a level is exceeded."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    cells = list(itertools.product(SAMPLES, ACCURACIES, REPEATS, CONFIGURATIONS))
    print("    n  accuracy  repeats  configurations  false  before")
    worst = 0.0
    for cell in cells:
        tables = drawn(rounds, cell)
        false = share_called_better(tables)
        with without_steps():
            before = share_called_better(tables)
        worst = max(worst, false)
        print("{:5d}{:10.2f}{:9d}{:16d}".format(*cell), f"{false:6.1%} {before:7.1%}", flush=True)
    print(f"largest: {worst:.1%}\n\n    n  accuracy  repeats  configurations   true  before")
    for cell in cells:
        if cell[2] >= 5:
            tables, best = drawn(rounds // 2, cell, 1.0), cell[3] - 1
            true = share_called_better(tables, best)
            with without_steps():
                before = share_called_better(tables, best)
            print(
                "{:5d}{:10.2f}{:9d}{:16d}".format(*cell), f"{true:6.1%} {before:7.1%}", flush=True
            )
    if worst > MOST:
        sys.exit(f"a level of {MOST:.0%} is exceeded")


if __name__ == "__main__":
    main()
