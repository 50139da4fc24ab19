"""What `sweeper evaluate` asks of a trial process instead of a trial, and what that says.

An evaluation runs in the very process that a trial would have, made by the same launcher. It asks
for the trial's stored parameters as a trial does, and knows no database either.
"""

from __future__ import annotations

from typing import Literal

from sweeper.execution.protocol.sendable import sendable


@sendable
class HeldOutData:
    """Where the data come from that checkpoints are measured on.

    Attributes:
        target: ``FILE:NAME`` or ``package.module:NAME``; None where the study's own are taken, or
            ``pickled`` has them.
        pickled: A function ``trial -> Data``, or a `Data`, by cloudpickle in base64.
        path: More of ``sys.path``, for what that refers to.
        shown: What the user calls them; None for the study's own.
    """

    target: str | None = None
    pickled: str | None = None
    path: tuple[str, ...] = ()
    shown: str | None = None


@sendable
class Candidate:
    """A checkpoint to be measured: what the database has of it, and where it is now."""

    path: str
    step: int
    epoch: int
    digest: str


@sendable
class Evaluation:
    """What to measure in place of a trial."""

    checkpoints: tuple[Candidate, ...]
    data: HeldOutData


@sendable
class CheckpointEvaluated:
    """Up: what a checkpoint gave."""

    checkpoint: Candidate
    data: str
    data_digest: str
    metrics: dict[str, float]
    kind: Literal["checkpoint_evaluated"] = "checkpoint_evaluated"


@sendable
class CheckpointPassedOver:
    """Up: why a checkpoint could not be measured."""

    checkpoint: Candidate
    reason: str
    kind: Literal["checkpoint_passed_over"] = "checkpoint_passed_over"


@sendable
class Evaluated:
    """Up, last: every checkpoint was measured or passed over; or none can be, of any trial.

    Attributes:
        refused: What is wrong with what was asked for; None where nothing is.
        traceback: The user's own, where their file of data raised an error.
    """

    refused: str | None = None
    traceback: str = ""
    kind: Literal["evaluated"] = "evaluated"
