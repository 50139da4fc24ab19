"""The best epoch's checkpoint: which one it is, and that retention keeps it where it is the value's.

A study whose trials are valued at their best epoch (``at="best"``) promises that epoch's weights, so
its checkpoint stays beside whatever `Keep` keeps, and outside of its ``at_most``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sweeper.spec.checkpointing import Keep, KeptCheckpoint
from sweeper.spec.searching import At, Direction, is_better


class Retention(Protocol):
    """Says which checkpoints may go."""

    def select(
        self, kept: Sequence[KeptCheckpoint], history: Sequence[Mapping[str, float]] = ()
    ) -> frozenset[KeptCheckpoint]:
        """Return those of ``kept`` that no rule keeps; ``history`` has the metrics of every epoch."""
        ...


def best_checkpoint(
    kept: Iterable[KeptCheckpoint], objective: str, direction: Direction
) -> KeptCheckpoint | None:
    """Return the checkpoint taken at the end of the best epoch, the earlier of equals, or None if
    no checkpoint has the objective.

    Of two at one step the later in ``kept`` stands for both. Those taken within an epoch know no
    objective.
    """
    newest = {c.step: c for c in kept if c.good}
    best: KeptCheckpoint | None = None
    for checkpoint in sorted(newest.values(), key=lambda c: c.step):
        value = checkpoint.metrics.get(objective, math.nan)
        if not math.isfinite(value):
            continue
        if best is None or is_better(value, best.metrics[objective], direction):
            best = checkpoint
    return best


@dataclass(frozen=True)
class KeepBest:
    """The study's rules, and the best epoch's checkpoint beside what they keep."""

    rules: Keep
    objective: str
    direction: Direction

    def select(
        self, kept: Sequence[KeptCheckpoint], history: Sequence[Mapping[str, float]] = ()
    ) -> frozenset[KeptCheckpoint]:
        """Return those of ``kept`` that neither a rule keeps nor the trial's value is of.

        Raises:
            DefinitionError: The rules' predicate raised an error.
        """
        ordered = sorted(kept, key=lambda c: c.step)
        best = best_checkpoint(ordered, self.objective, self.direction)
        return self.rules.select(kept, history) - {best}


def retention(keep: Keep, at: At, objective: str, direction: Direction) -> Retention:
    """Return the retention rules for the trials of a study that values them at ``at``."""
    return KeepBest(keep, objective, direction) if at == "best" else keep


class BestSoFar:
    """Follows a training's epochs, and tells those that are better than all before.

    Args:
        objective: The metric.
        direction: ``"maximize"`` or ``"minimize"``.
    """

    def __init__(self, objective: str, direction: Direction) -> None:
        self._objective = objective
        self._direction = direction
        self._best: float | None = None

    def improves(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the epoch that ended with ``metrics`` is the best so far, and count it from now on."""
        value = metrics.get(self._objective, math.nan)
        if not math.isfinite(value):
            return False
        if self._best is not None and not is_better(value, self._best, self._direction):
            return False
        self._best = value
        return True
