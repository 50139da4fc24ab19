"""Orders and messages about audits, between a trial and its worker.

An audited trial pins what an audit needs, and reports where; its worker writes that down.
"""

from __future__ import annotations

from typing import Literal

from sweeper.execution.protocol.sendable import sendable


@sendable
class AuditOrder:
    """What a trial does for audits, beside what its assignment says.

    Attributes:
        directory: Where it pins.
        which: ``"first"``: its first intervals. ``"drawn"``: the first that begins at or after the
            end of ``epoch`` epochs. ``"all"``: every one. ``"none"``: nothing is pinned.
        wanted: How many intervals are still to be pinned; of ``"all"`` there is no such number.
        middle: Whether the first interval begins in the middle of an epoch, with one more
            checkpoint that is for the audit alone.
    """

    directory: str
    which: Literal["first", "drawn", "all", "none"]
    wanted: int = 0
    middle: bool = False
    epoch: int = 0


@sendable
class IntervalPinned:
    """Up: an interval between two checkpoints is pinned, whole, and can be audited.

    Attributes:
        from_path: The checkpoint to resume; None where the interval begins with the trial.
        problem: Why it could not be pinned; None where it is.
    """

    from_step: int
    to_step: int
    to_epoch: int
    directory: str
    from_path: str | None
    to_path: str
    problem: str | None = None
    kind: Literal["interval_pinned"] = "interval_pinned"
