"""False and true positives of verdicts on configurations, where the metric is an accuracy in steps of 1/n.

Run as ``python benchmarks/verdict_levels.py [ROUNDS]``. Each repeat of a configuration is a binomial
accuracy on n samples. The first tables have the shares of studies of equal configurations in which one is
called better, the largest of which must be at most 6%. The others have the shares in which a configuration
is called better that is better by one standard deviation of the paired differences, and in parentheses those
of the former rule, which counted a spread of 0 as certainty.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sweeper.records import comparisons

SAMPLES = (50, 200, 1000)
ACCURACIES = (0.9, 0.95, 0.99)
REPEATS = tuple(range(2, 11))
CONFIGURATIONS = tuple(range(2, 9))
MOST = 0.06
NEAR = 0.045


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


def false_share(rounds: int, cell: tuple[int, float, int, int]) -> float:
    """Return the share of false verdicts in a cell; one near the bound is simulated with ten times as many."""
    share = share_called_better(drawn(rounds, cell))
    if share > NEAR:
        return share_called_better(drawn(10 * rounds, cell))
    return share


def table(
    title: str, rows: Sequence[float], columns: Sequence[float], cells: dict[Any, str]
) -> None:
    """Print a table for a page of Markdown."""
    print(f"\n| {title} | {' | '.join(map(str, columns))} |\n|{'---|' * (len(columns) + 1)}")
    for row in rows:
        print(f"| {row} | {' | '.join(cells[row, column] for column in columns)} |", flush=True)


def main() -> None:
    """Print the tables; end with an error if a level is exceeded."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    kinds = list(itertools.product(SAMPLES, ACCURACIES))
    sizes = list(itertools.product(REPEATS, CONFIGURATIONS))
    false = {
        (*kind, *size): false_share(rounds, (*kind, *size)) for kind in kinds for size in sizes
    }
    by_size = {size: max(false[*kind, *size] for kind in kinds) for size in sizes}
    by_kind = {kind: max(false[*kind, *size] for size in sizes) for kind in kinds}
    print("Largest share of false verdicts over all n and accuracies:")
    shown = {size: f"{share:.1%}" for size, share in by_size.items()}
    table("repeats \\ configurations", REPEATS, CONFIGURATIONS, shown)
    print("\nThe same over all repeats and configurations:")
    table("n \\ accuracy", SAMPLES, ACCURACIES, {k: f"{share:.1%}" for k, share in by_kind.items()})
    print("\nShare of true verdicts, and that of the former rule:")
    for repeats, samples in itertools.product((5, 10), SAMPLES):
        true = {}
        for accuracy, configurations in itertools.product(ACCURACIES, (2, 4, 8)):
            cell = samples, accuracy, repeats, configurations
            tables = drawn(rounds // 2, cell, 1.0)
            share = share_called_better(tables, configurations - 1)
            with without_steps():
                before = share_called_better(tables, configurations - 1)
            true[accuracy, configurations] = f"{share:.0%} ({before:.0%})"
        table(f"{repeats} repeats, n = {samples}", ACCURACIES, (2, 4, 8), true)
    worst = max(false.values())
    print(f"\nlargest: {worst:.2%} in {max(false, key=lambda cell: false[cell])}")
    if worst > MOST:
        sys.exit(f"a level of {MOST:.0%} is exceeded")


if __name__ == "__main__":
    main()
