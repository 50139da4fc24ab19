"""What `sweeper check` asks of a trial process instead of a trial, and what that says.

A rehearsal runs in the very process that a trial would have, made by the same launcher; only what
it does there differs. It asks for parameters as a trial does, and knows no database either.
"""

from __future__ import annotations

from typing import Literal

from sweeper.execution.protocol.sendable import sendable
from sweeper.replay.reports import RehearsalReport

Part = Literal["build", "read", "together", "train"]
"""
- ``"build"``: build one trial, as a process of a run would, and read its validation data.
- ``"read"``: the same; then read its training data, and make the variables that a batch makes.
- ``"together"``: build several trials in this one process, as ``isolation="inline"`` would, after the
  first one's data were read; what they would share is reported, and is no error.
- ``"train"``: build a trial and train some epochs, watched.
"""


@sendable
class Rehearsal:
    """What to do in place of a trial.

    Attributes:
        part: See `Part`.
        number: The trial to build, for ``"build"`` and ``"read"``.
        like: The trial whose parameters it is built with; None for its own.
    """

    part: Part
    number: int = 0
    like: int | None = None


@sendable
class Rehearsing:
    """Up: what is about to be done, and for which trial; parameters asked for next are its.

    Attributes:
        sound: Whether it is known by now that the trial would not be refused.
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
