"""Checkpoint intervals and retention rules, as plain frozen values.

This module does not import NumPy, so that the command line and the database can describe policies
quickly. `Keep.select` is a pure function, so the same checkpoints always lead to the same
deletions.

Time in a policy is *training* time, measured by a monotonic clock and carried from attempt to
attempt in the checkpoints themselves. So neither a change of the wall clock nor a pause between two
attempts affects a decision.

A study whose trials are valued at their best epoch (``at="best"``) promises that epoch's weights, so
its checkpoint stays beside whatever `Keep` keeps, and outside of its ``at_most``.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from sweeper.declarations.arguments import checked_whole, with_named_arguments
from sweeper.declarations.searching import At, Direction, cost_sign, direction_of
from sweeper.errors import DefinitionError
from sweeper.support.paths import Location
from sweeper.support.shown import shown_error, shown_value

_SECONDS_AN_HOUR = 3600.0


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Every:
    """Interval between checkpoints; of several intervals, the first that is due applies.

    Args:
        steps: Optimizer steps of the whole trial: a checkpoint at every multiple.
        seconds: Seconds of training since the last checkpoint.
        epochs: Epochs of the whole trial: a checkpoint at every multiple.

    Raises:
        DefinitionError: None of the three is given, or one is not above 0.

    Examples:
        >>> sweeper.Every(steps=500, seconds=60).next_step(420)
        500
    """

    steps: int | None = None
    seconds: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None and self.epochs is None:
            raise DefinitionError("Every() names no interval; give steps=, seconds= or epochs=")
        _check_count("Every", "steps", self.steps)
        _check_positive("Every", "seconds", self.seconds)
        _check_count("Every", "epochs", self.epochs)

    def due(self, *, step: int, epoch: int, last_step: int, last_epoch: int, since: float) -> bool:
        """Return whether a checkpoint is due.

        Args:
            step: Optimizer steps finished now.
            epoch: Epochs finished now.
            last_step: Steps finished at the last checkpoint, 0 before the first.
            last_epoch: Epochs finished at the last checkpoint, 0 before the first.
            since: Seconds of training since the last checkpoint.
        """
        if self.steps is not None and step // self.steps > last_step // self.steps:
            return True
        if self.epochs is not None and epoch // self.epochs > last_epoch // self.epochs:
            return True
        return self.seconds is not None and since >= self.seconds

    def next_step(self, step: int) -> int | None:
        """Return the first step after ``step`` at which a checkpoint is due, or None without ``steps``.

        Args:
            step: Optimizer steps finished now.
        """
        return None if self.steps is None else (step // self.steps + 1) * self.steps


CheckpointEvery = Every | Literal["auto"]
"""An interval, or "auto": the shortest one with a measured stall below 1% of the training."""


def parse_every(value: object) -> CheckpointEvery:
    """Return the interval that a definition or a database describes.

    It is ``"epoch"``, ``"auto"``, an `Every`, or its description as a mapping; others are refused.
    """
    if isinstance(value, Every):
        return value
    if value == "auto":
        return "auto"
    if value == "epoch":
        return Every(epochs=1)
    if isinstance(value, Mapping):
        return Every(**value)
    raise DefinitionError(
        f"checkpoint_every={shown_value(value)} is not an interval; use 'epoch', 'auto', "
        "Every(steps=…), Every(seconds=…) or Every(epochs=…)"
    )


def describe_every(every: CheckpointEvery) -> dict[str, object] | str:
    """Return a JSON value from which `parse_every` makes ``every`` again."""
    if not isinstance(every, Every):
        return "auto"
    if every == Every(epochs=1):
        return "epoch"
    intervals = {f.name: getattr(every, f.name) for f in fields(Every)}
    return {name: value for name, value in intervals.items() if value is not None}


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """One complete checkpoint, or one that did not verify.

    Attributes:
        step: Optimizer steps finished when it was taken.
        epoch: Epochs finished when it was taken.
        path: Its directory, or its prefix in an object store.
        metrics: The metrics known when it was taken; empty in the middle of an epoch.
        trained_seconds: Seconds of training before it, over all attempts.
        good: False if it did not verify: then no rule counts or deletes it.
        digest: XXH3-128 (hex) of the training's state; empty if it did not verify.
        bytes: Total size of its files.
        written_seconds: Seconds of writing it; None for one of an earlier process.
    """

    step: int
    epoch: int
    path: Location
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    trained_seconds: float = 0.0
    good: bool = True
    digest: str = ""
    bytes: int = 0
    written_seconds: float | None = None


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Keep:
    """Retention rules; a checkpoint is kept if any rule keeps it.

    Args:
        last: The number of newest checkpoints, at least 1.
        best: The number of best checkpoints by ``monitor``; of equal ones the earlier is better.
        monitor: The metric for ``best``. A checkpoint without it, or with NaN, has no rank.
        mode: "min" or "max", for ``monitor`` and ``improving``. By default that of each metric's name,
            as of a study's objective; required if the name does not determine it.
        every_hours: The first checkpoint in each period of this many hours of training.
        every_epochs: The first checkpoint at each multiple of this many finished epochs.
        when: A predicate over the checkpoint's metrics; not called for one without metrics.
        improving: A metric. A checkpoint at an epoch's end is kept if the metric is better than at
            every epoch that this rule chose before. If ``when`` is given, it is a further condition
            of this rule and keeps nothing by itself. Epochs without a checkpoint are compared too,
            so the same history always leads to the same choice.
        at_most: A limit for all rules together. Kept first are the newest, then the best by rank,
            then the others, newest first.

    Raises:
        DefinitionError: The rules are impossible or contradict each other.

    Examples:
        >>> keep = sweeper.Keep(last=2, best=1, monitor="val_loss", mode="min", at_most=10)
    """

    last: int = 2
    best: int = 0
    monitor: str | None = None
    mode: Literal["min", "max"] | None = None
    every_hours: float | None = None
    every_epochs: int | None = None
    when: Callable[[Mapping[str, float]], bool] | None = None
    at_most: int | None = None
    improving: str | None = None

    def __post_init__(self) -> None:
        checked_whole(self.last, "Keep: last", least=1)
        checked_whole(self.best, "Keep: best", least=0)
        _check_positive("Keep", "every_hours", self.every_hours)
        _check_count("Keep", "every_epochs", self.every_epochs)
        _check_count("Keep", "at_most", self.at_most)
        if self.mode not in (None, "min", "max"):
            raise DefinitionError(f"Keep(mode={shown_value(self.mode)}); expected 'min' or 'max'")
        for name in ("monitor", "improving"):
            metric = getattr(self, name)
            if metric is not None and (not isinstance(metric, str) or not metric):
                raise DefinitionError(
                    f"Keep({name}={shown_value(metric)}); expected a metric's name, such as 'val_loss'"
                )
            if metric is not None and self.mode is None and direction_of(metric) is None:
                raise DefinitionError(
                    f"Keep({name}={metric!r}): its name does not tell whether larger is better; give "
                    "mode='min' or mode='max'"
                )
        if self.best and self.monitor is None:
            raise DefinitionError(
                f"Keep(best={self.best}) does not say by which metric; give one, such as "
                "monitor='val_loss'"
            )
        alone = self.mode is not None and self.improving is None
        if not self.best and (self.monitor is not None or alone):
            raise DefinitionError(
                f"Keep(monitor={shown_value(self.monitor)}, mode={shown_value(self.mode)}) keeps nothing with best=0; "
                "give best=1 or more, or leave both out"
            )
        if self.when is not None and not callable(self.when):
            raise DefinitionError(
                f"Keep(when={shown_value(self.when)}); expected a function of a mapping of metrics"
            )

    def select(
        self, kept: Sequence[KeptCheckpoint], history: Sequence[Mapping[str, float]] = ()
    ) -> frozenset[KeptCheckpoint]:
        """Return the checkpoints among ``kept`` that no rule keeps.

        Args:
            kept: The trial's checkpoints.
            history: The metrics of its epochs from the first on, for ``improving``.

        Never returned are the newest, the newest good one, and those that are not good. Of two at
        the same step, the later one in ``kept`` is the newer; the rules ignore the older one, so it
        is returned.

        Raises:
            DefinitionError: ``when`` raised an error.
        """
        ordered = sorted(kept, key=lambda c: c.step)
        good = [c for c in ordered if c.good]
        if not good:
            return frozenset()
        # Of two checkpoints at one step, the later one.
        newest = list({c.step: c for c in good}.values())
        ranked = self._ranked(newest)
        keepers = {*newest[-self.last :], *ranked}
        if self.every_hours is not None:
            period = self.every_hours * _SECONDS_AN_HOUR
            keepers.update(_first_of_each((int(c.trained_seconds // period), c) for c in newest))
        if self.every_epochs is not None:
            every = self.every_epochs
            keepers.update(_first_of_each((c.epoch, c) for c in newest if c.epoch % every == 0))
        if self.improving is None and self.when is not None:
            measured = [c for c in newest if c.metrics]
            keepers.update(c for c in measured if self._holds(c.metrics, f"step {c.step}"))
        elif self.improving is not None:
            epochs = self.improvements(history)
            keepers.update(c for c in newest if c.metrics and c.epoch in epochs)
        if self.at_most is not None:
            others = [c for c in reversed(newest) if c in keepers]
            priority = list(dict.fromkeys([newest[-1], *ranked, *others]))
            keepers = set(priority[: self.at_most])
        return frozenset(c for c in good if c not in keepers and c is not ordered[-1])

    def improvements(self, history: Sequence[Mapping[str, float]]) -> frozenset[int]:
        """Return the epochs, counted from 1, at whose end ``improving`` chooses a checkpoint.

        Args:
            history: The metrics of each epoch, from the first on.

        Raises:
            DefinitionError: ``when`` raised an error.
        """
        epochs: set[int] = set()
        if self.improving is None:
            return frozenset()
        sign = self._sign(self.improving)
        best = math.inf
        for epoch, metrics in enumerate(history, 1):
            value = sign * metrics.get(self.improving, math.nan)
            if value < best and self._holds(metrics, f"epoch {epoch}"):
                epochs.add(epoch)
                best = value
        return frozenset(epochs)

    def describe(self) -> dict[str, object]:
        """Return the rules as a JSON value. A predicate is described by its qualified name."""
        described: dict[str, object] = {}
        for rule in fields(self):
            value = getattr(self, rule.name)
            if rule.name == "when" and value is not None:
                value = _qualified_name(value)
            if rule.name in ("last", "best") or value is not None:
                described[rule.name] = value
        return described

    def _ranked(self, good: Sequence[KeptCheckpoint]) -> list[KeptCheckpoint]:
        if not self.best or self.monitor is None:
            return []
        monitor = self.monitor
        sign = self._sign(monitor)
        measured = [c for c in good if not math.isnan(c.metrics.get(monitor, math.nan))]
        return sorted(measured, key=lambda c: sign * c.metrics[monitor])[: self.best]

    def _sign(self, metric: str) -> float:
        """Return -1 for a metric of which a larger value is better, and otherwise 1."""
        larger = direction_of(metric) == "maximize" if self.mode is None else self.mode == "max"
        return -1.0 if larger else 1.0

    def _holds(self, metrics: Mapping[str, float], where: str) -> bool:
        """Return whether ``when`` holds for the metrics at ``where``, or is not given."""
        if self.when is None:
            return True
        try:
            return bool(self.when(metrics))
        except Exception as error:
            raise DefinitionError(
                f"Keep(when={_qualified_name(self.when)}) raised "
                f"{shown_error(error)} for the metrics {sorted(metrics)} of {where}; it must return True or "
                "False for each"
            ) from error


def _first_of_each(placed: Iterable[tuple[int, KeptCheckpoint]]) -> Iterable[KeptCheckpoint]:
    """Return the first checkpoint of each period except the 0th."""
    # Reversed, so that the first of each period replaces the later ones.
    return {period: checkpoint for period, checkpoint in reversed([*placed]) if period > 0}.values()


def _qualified_name(function: object) -> str:
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}.{name}"


def _check_count(owner: str, name: str, value: object) -> None:
    if value is not None:
        checked_whole(value, f"{owner}: {name}", least=1)


def _check_positive(owner: str, name: str, value: object) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise DefinitionError(
            f"{owner}({name}={shown_value(value)}); expected a finite number above 0"
        )


def best_checkpoint(
    kept: Iterable[KeptCheckpoint], objective: str, direction: Direction
) -> KeptCheckpoint | None:
    """Return the checkpoint taken at the end of the best epoch, the earlier of equals, or None if no checkpoint has the objective.

    If two checkpoints have one step, the later in ``kept`` counts. Checkpoints inside an epoch have no
    objective.
    """
    newest = {c.step: c for c in kept if c.good}
    sign = cost_sign(direction)
    measured = [c for c in newest.values() if math.isfinite(c.metrics.get(objective, math.nan))]
    return min(measured, key=lambda c: (sign * c.metrics[objective], c.step), default=None)


@dataclass(frozen=True)
class KeepBest:
    """The study's rules, and the best epoch's checkpoint beside what they keep."""

    rules: Keep
    objective: str
    direction: Direction

    def select(
        self, kept: Sequence[KeptCheckpoint], history: Sequence[Mapping[str, float]] = ()
    ) -> frozenset[KeptCheckpoint]:
        """Return the checkpoints of ``kept`` that no rule keeps, without that of the trial's value."""
        best = best_checkpoint(kept, self.objective, self.direction)
        return self.rules.select(kept, history) - {best}


@dataclass(frozen=True)
class KeepEnd:
    """The rules of a training, and the checkpoint at the end of one epoch beside what they keep."""

    rules: Keep
    epoch: int

    def select(
        self, kept: Sequence[KeptCheckpoint], history: Sequence[Mapping[str, float]] = ()
    ) -> frozenset[KeptCheckpoint]:
        """Return the checkpoints of ``kept`` that no rule keeps, without that of the epoch's end."""
        return self.rules.select(kept, history) - {end_of_epoch(kept, self.epoch)}


def end_of_epoch(kept: Iterable[KeptCheckpoint], epoch: int) -> KeptCheckpoint | None:
    """Return the checkpoint that was taken when ``epoch`` epochs had just finished; None if it is not there."""
    ends = [c for c in kept if c.good and c.epoch == epoch and c.metrics]
    return ends[-1] if ends else None


Retention = Keep | KeepBest | KeepEnd
"""Rules that select the checkpoints to delete."""


def retention(keep: Keep, at: At, objective: str, direction: Direction) -> Retention:
    """Return the retention rules for the trials of a study that values them at ``at``."""
    return KeepBest(keep, objective, direction) if at == "best" else keep


class BestSoFar:
    """Best value of the objective in the epochs of a training."""

    def __init__(self, objective: str, direction: Direction) -> None:
        self._objective = objective
        self._sign = cost_sign(direction)
        self._best = math.inf

    def improves(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the epoch that ended with ``metrics`` is the best so far, and count it from now on."""
        value = self._sign * metrics.get(self._objective, math.nan)
        if not math.isfinite(value) or value >= self._best:
            return False
        self._best = value
        return True
