"""What a rehearsal reports: the events of a training, and what the user wrote, as plain values.

They are made where TensorFlow and the study are, and read where neither is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.independence.findings import Line
from sweeper.independence.nondeterminism import Suspect

__all__ = ["PARTS", "Authored", "Event", "StudyAuthors", "Trace"]

PARTS = ("x", "y", "sample_weight")
"""What the parts of a batch are called."""


@dataclass(frozen=True, slots=True)
class Event:
    """The state after something happened.

    Attributes:
        what: ``"start"``, ``"step"``, ``"callback"`` or ``"elsewhere"`` (between two others: a
            validation, the loop's own work).
        owner: The callback's position, for ``"callback"``.
        hook: The hook that it ran.
        step: Steps finished.
        state: A digest a variable.
    """

    what: str
    owner: int | None
    hook: str
    step: int
    state: tuple[str, ...]

    def to_json(self) -> list[Any]:
        return [self.what, self.owner, self.hook, self.step, list(self.state)]

    @classmethod
    def from_json(cls, value: list[Any]) -> Event:
        return cls(value[0], value[1], value[2], value[3], tuple(value[4]))


@dataclass(frozen=True, slots=True)
class Trace:
    """All events of one training.

    Attributes:
        variables: The component and path of each variable, as the events have them.
    """

    variables: tuple[str, ...]
    events: tuple[Event, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "variables": list(self.variables),
            "events": [event.to_json() for event in self.events],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trace:
        return cls(tuple(value["variables"]), tuple(map(Event.from_json, value["events"])))


@dataclass(frozen=True, slots=True)
class Authored:
    """One thing that the user wrote, as a judge in another process knows it.

    Attributes:
        name: What to call it.
        line: Where it is defined; None for a library's.
        suspects: Calls in it that may give something else every time.
        outside: Module variables that it changes, which no checkpoint holds.
    """

    name: str
    line: Line | None = None
    suspects: tuple[Suspect, ...] = ()
    outside: tuple[Suspect, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "line": None if self.line is None else self.line.to_json(),
            "suspects": [suspect.to_json() for suspect in self.suspects],
            "outside": [suspect.to_json() for suspect in self.outside],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Authored:
        return cls(
            value["name"],
            Line.from_json(value["line"]),
            tuple(map(Suspect.from_json, value["suspects"])),
            tuple(map(Suspect.from_json, value["outside"])),
        )


@dataclass(frozen=True, slots=True)
class StudyAuthors:
    """What the user wrote.

    Attributes:
        model: The model factory, and the user's own layers with it.
        data: The data factory.
        given: Classes and functions of the user's that `Data` holds.
        step: What of the user's runs in a step.
        callbacks: In their order.
        step_ops: Ops of the step that call back into Python.
        data_ops: Parts of a dataset that may give another order, or call back into Python.
    """

    model: Authored
    data: Authored
    given: Authored
    step: Authored
    callbacks: tuple[Authored, ...]
    step_ops: tuple[str, ...]
    data_ops: tuple[str, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StudyAuthors:
        return cls(
            model=Authored.from_json(value["model"]),
            data=Authored.from_json(value["data"]),
            given=Authored.from_json(value["given"]),
            step=Authored.from_json(value["step"]),
            callbacks=tuple(map(Authored.from_json, value["callbacks"])),
            step_ops=tuple(value["step_ops"]),
            data_ops=tuple(value["data_ops"]),
        )
