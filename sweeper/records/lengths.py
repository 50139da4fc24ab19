"""Number of epochs that trials train for: extensions of it, and decisions at the rungs of a budget.

A study is defined with one number of epochs, its first length. An extension raises that number for
the whole study or for some of its trials, which then go on from where they ended. A budget ends
trials at its rungs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sweeper.records.printing import counted, json_fields, value_shown, values_shown

LengthKind = Literal["reads", "epochs", "steps"]
"""Kinds of use of the number of epochs: see `LengthRead`."""


@dataclass(frozen=True, slots=True)
class LengthRecord:
    """A number of epochs at which a trial has come to its end, and what it gave there.

    Attributes:
        epochs: How many it was to train for.
        trained: How many it trained: fewer where it stopped early or was pruned.
        state: How it ended there: "complete" or "pruned".
        value: The objective, the first of several; None where a pruned trial has none.
        digest: Of the training state at that end.
        at: When it ended; the database's clock.
        values: In a study of several objectives, by their names; else None.

    Examples:
        >>> [(length.epochs, length.state) for length in study.results().best.lengths]
        [(2, 'complete')]
    """

    epochs: int
    trained: int
    state: Literal["complete", "pruned"]
    value: float | None
    digest: str | None
    at: datetime | None
    values: Mapping[str, float] | None = None

    def __str__(self) -> str:
        given = {"value": self.value} if self.values is None else self.values
        trained = counted(self.trained, "epoch")
        return f"{self.state} after {trained} of {self.epochs}, {values_shown(given)}"

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "epochs", "trained", "state", "value"),
            **({} if self.values is None else {"values": dict(self.values)}),
            **json_fields(self, "digest", "at"),
        }


@dataclass(frozen=True, slots=True)
class Extension:
    """Trials to extend, and their new number of epochs.

    Attributes:
        epochs: The number of epochs to train for, those that are over included.
        trials: The numbers of the trials; None for the whole study: its complete trials, those that
            have begun, and those that have not.
        best: Instead of numbers, how many of the best trials.
    """

    epochs: int
    trials: tuple[int, ...] | None = None
    best: int | None = None


@dataclass(frozen=True, slots=True)
class ExtensionPlan:
    """Changes that an extension makes.

    Attributes:
        reopened: Finished trials that go on, by number; each with the epochs it was to train for.
        lengthened: Trials that have begun and have not finished, likewise.
        raised: Whether trials that have not begun will train for that number too.
    """

    reopened: Mapping[int, int]
    lengthened: Mapping[int, int]
    raised: bool

    @property
    def begun(self) -> Mapping[int, int]:
        """Return the trials that change, finished or not, with their number of epochs before."""
        return {**self.reopened, **self.lengthened}

    def __bool__(self) -> bool:
        return bool(self.reopened or self.lengthened or self.raised)


@dataclass(frozen=True, slots=True)
class LengthRead:
    """One expression of the user's code that goes by the number of epochs, or may.

    Attributes:
        where: The part of the code, its file and line.
        text: The expression, as it is written.
        kind: "reads" where it asks for the number; "epochs" and "steps" where it holds ``number``,
            which is that of the epochs, or of all their steps, only if it happens to be equal.
        number: The number that it holds; 0 where it asks.
    """

    where: str
    text: str
    kind: LengthKind
    number: int = 0

    def goes_by(self, epochs: Collection[int], steps: Collection[int]) -> bool:
        """Return whether the code depends on one of these lengths, given in epochs and in steps."""
        known = {"reads": (self.number,), "epochs": epochs, "steps": steps}
        return self.number in known[self.kind]

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class ComparedTrial:
    """One trial in a rung's decision.

    Attributes:
        number: The trial's.
        value: The objective that it had reached; None where it had failed or that is NaN.
        promoted: Whether it went on.
    """

    number: int
    value: float | None
    promoted: bool

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(frozen=True, slots=True)
class RungDecision:
    """A decided rung of one round.

    Attributes:
        bracket: From 0.
        first: The number of the round's first trial.
        epochs: After which its trials paused.
        decided_at: The database's clock.
        compared: Who was compared, by number.
    """

    bracket: int
    first: int
    epochs: int
    decided_at: datetime
    compared: tuple[ComparedTrial, ...]

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(frozen=True, slots=True)
class RungRecord:
    """One trial at one rung.

    Attributes:
        epochs: After which it paused, or was compared there although it was over before.
        value: The objective that it had reached; None where it had failed or that is NaN.
        promoted: Whether it went on; None before that is decided.
        decision: Of the rung, with everybody who was compared; None before it is decided.

    Examples:
        >>> study.results().best.rungs  # of a study with a budget alone
        ()
    """

    epochs: int
    value: float | None
    promoted: bool | None
    decision: RungDecision | None = None

    def __str__(self) -> str:
        decided = {None: "not decided", True: "promoted", False: "ended"}[self.promoted]
        return f"rung after {counted(self.epochs, 'epoch')}: value={value_shown(self.value)}, {decided}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)
