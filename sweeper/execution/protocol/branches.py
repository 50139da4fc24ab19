"""From which checkpoint of another trial a branch begins, as its process learns it."""

from __future__ import annotations

from typing import Any

from sweeper.execution.protocol.sendable import sendable


@sendable
class BranchStart:
    """The checkpoint of another trial that a trial begins from.

    Attributes:
        parent: The number of the trial that the checkpoint is of.
        seeded_as: The number of the trial whose seed this one has.
        step: Of the checkpoint.
        digest: Of the checkpoint's variables.
        directories: Where the checkpoint may lie.
        params: The parent's parameters.
        changed: Those of this trial that are others.
    """

    parent: int
    seeded_as: int
    step: int
    digest: str
    directories: tuple[str, ...]
    params: dict[str, Any]
    changed: dict[str, Any]
