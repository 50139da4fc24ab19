"""Ancestry of a trial that began at a checkpoint of another trial.

A branch has its parent's seed, so that the order of its data, its dropout and its initial weights are
its parent's; and its parent's parameters, but for those that were changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sweeper.records.printing import counted, json_fields, values_shown
from sweeper.spec.space import CategoricalChoice, Distribution


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """The checkpoint that a branch begins from, and what it changes.

    Attributes:
        number: Of the trial that the checkpoint is of.
        step: Of the checkpoint.
        digest: Of the checkpoint's variables.
        epoch: Epochs that are over at the checkpoint.
        seeded_as: The number of the trial that the branch has its seed of: its first ancestor.
        epochs: For which the branch trains, counted from its first ancestor's beginning.
        changed: The parameters that are others than the parent's, with their values in the branch.
        outside: Those of them that the parent's range does not contain.
        attempts: How many the parent had.
        params: The parent's parameters.
        distributions: What the parent's parameters were drawn from.

    Examples:
        >>> study.results().best.parent is None  # it began from nothing
        True
    """

    number: int
    step: int
    digest: str
    epoch: int
    seeded_as: int
    epochs: int
    changed: Mapping[str, CategoricalChoice] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    attempts: int = field(default=0, compare=False)
    params: Mapping[str, CategoricalChoice] = field(default_factory=dict, repr=False)
    distributions: Mapping[str, Distribution] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        changed = f", with {values_shown(self.changed)}" if self.changed else ""
        return (
            f"trial {self.number} at step {self.step} after {counted(self.epoch, 'epoch')}{changed}"
        )

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "number", "step", "digest")


@dataclass(frozen=True, slots=True)
class BranchStatus:
    """Progress of one branch of a study; branches do not count towards the study's total.

    Attributes:
        number: The branch's.
        parent: The number of the trial that it begins from.
        step: Of the checkpoint that it begins from.
        state: Where it stands, as a trial's.

    Examples:
        >>> study.status().branches
        ()
    """

    number: int
    parent: int
    step: int
    state: str

    def __str__(self) -> str:
        return f"branch {self.number} of trial {self.parent} at step {self.step}, {self.state}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)


class _HasEpochs(Protocol):
    """An epoch's record."""

    @property
    def epoch(self) -> int: ...


class Descendant(Protocol):
    """A trial's record, as far as its descent goes."""

    @property
    def number(self) -> int: ...

    @property
    def params(self) -> Mapping[str, CategoricalChoice]: ...

    @property
    def epochs(self) -> Sequence[_HasEpochs]: ...

    @property
    def parent(self) -> ParentRecord | None: ...


def schedule_of(
    record: Descendant, trial: Callable[[int], Descendant]
) -> tuple[dict[str, Any], ...]:
    """Return the parameters of a trial and its ancestors, from the first ancestor on.

    Args:
        record: The trial.
        trial: Gives a trial of its study, by number.

    Returns:
        For each stretch ``trial``, ``from_epoch``, ``to_epoch`` (the first that is not of it) and
        ``params``.
    """
    before: list[dict[str, Any]] = []
    begun = 0
    if record.parent is not None:
        begun = record.parent.epoch
        earlier = schedule_of(trial(record.parent.number), trial)
        before = [dict(each) for each in earlier if each["from_epoch"] < begun]
        for each in before[-1:]:
            each["to_epoch"] = begun
    ended = max((each.epoch + 1 for each in record.epochs), default=begun)
    own = {"trial": record.number, "from_epoch": begun, "to_epoch": ended}
    return (*before, {**own, "params": dict(record.params)})
