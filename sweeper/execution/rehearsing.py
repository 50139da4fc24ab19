"""What `sweeper check` asks of a trial process instead of a trial, and what that says.

A rehearsal runs in the very process that a trial would have, made by the same launcher; only what
it does there differs. It asks for parameters as a trial does, and knows no database either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, with_config

__all__ = ["Part", "Rehearsal", "Rehearsed", "Rehearsing"]

Part = Literal["glance", "build", "train", "twins", "trial"]
"""
- ``"glance"``: build one trial, under guard.
- ``"build"``: build two trials and walk the one against the other; nothing is trained.
- ``"train"``: build a trial and train some steps, watched.
- ``"twins"``: the same, and then a second trial in turn with the first; and build both.
- ``"trial"``: the trial itself, with epochs as short as those of ``"train"``.
"""

_config = ConfigDict(extra="forbid")


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What to do in place of a trial.

    Attributes:
        part: See `Part`.
        epoch_steps: Steps in an epoch, where the study's own are too many; None to decide that.
        validation_steps: Batches in a validation, likewise.
    """

    part: Part
    epoch_steps: int | None = None
    validation_steps: int | None = None


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Rehearsing:
    """Up: what is about to be done, and for which trial; parameters asked for next are its."""

    stage: str
    number: int
    kind: Literal["rehearsing"] = "rehearsing"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Up, last: all that was found, as JSON values; see `sweeper.execution.rehearsal`."""

    report: dict[str, Any]
    kind: Literal["rehearsed"] = "rehearsed"
