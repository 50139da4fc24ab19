"""Ancestry of a trial that starts from a checkpoint of another trial.

A branch has its parent's seed, so that the order of its data, its dropout and its initial weights equal
its parent's. It also has its parent's parameters, except for the changed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.records.printing import counted, json_fields, values_shown
from sweeper.spec.space import CategoricalChoice, Distribution


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """The checkpoint from which a branch starts, and its changed parameters.

    Attributes:
        number: Number of the trial with the checkpoint.
        step: Step of the checkpoint.
        digest: Digest of the checkpoint's variables.
        epoch: Finished epochs at the checkpoint.
        seeded_as: Number of the trial whose seed the branch uses: its first ancestor.
        epochs: Number of epochs of the branch, counted from its first ancestor's start.
        changed: The changed parameters, with their values in the branch.
        outside: Names of changed parameters whose values are outside of the parent's range.
        attempts: Number of the parent's attempts.
        params: The parent's parameters.
        distributions: Distributions of the parent's parameters.

    Examples:
        >>> study.results().best.parent is None  # it is no branch
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
        number: Number of the branch.
        parent: Number of the trial from which it starts.
        step: Step of the checkpoint from which it starts.
        state: Its state, as that of a trial.

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
