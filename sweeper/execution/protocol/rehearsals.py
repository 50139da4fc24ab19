"""What `sweeper check` asks of a trial process instead of a trial, and what that says.

A rehearsal runs in the very process that a trial would have, made by the same launcher; only what
it does there differs. It asks for parameters as a trial does, and knows no database either.
"""

from __future__ import annotations

from typing import Literal

from sweeper.execution.protocol.sendable import sendable
from sweeper.independence.reports import RehearsalReport

Part = Literal["alone", "early", "build", "train", "twins", "trial"]
"""
- ``"alone"``: build the study's second trial, and none before it.
- ``"early"``: build two trials, say whether they are sound, and build one more with the parameters of
  each; what trials share only where one process builds several is a warning.
- ``"build"``: build two trials, and one more with the parameters of each, and walk them against each
  other; nothing is trained.
- ``"train"``: build a trial and train some epochs, watched.
- ``"twins"``: the same, and then a second trial in turn with the first; and build as ``"build"`` does.
- ``"trial"``: the trial itself, with epochs as short as those of ``"train"``.
"""


@sendable
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


@sendable
class Rehearsing:
    """Up: what is about to be done, and for which trial; parameters asked for next are its.

    Attributes:
        sound: Whether it is known by now that the trials built so far share nothing that processes
            of their own would share.
    """

    stage: str
    number: int
    sound: bool = False
    kind: Literal["rehearsing"] = "rehearsing"


@sendable
class Rehearsed:
    """Up, last: all that was found."""

    report: RehearsalReport
    kind: Literal["rehearsed"] = "rehearsed"
