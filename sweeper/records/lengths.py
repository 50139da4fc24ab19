"""Lengths of trials in epochs: extensions, and decisions at the rungs of a budget.

A study is defined with one number of epochs, its first length. An extension raises that number for the
whole study or for some of its trials, which then resume from their last checkpoints. A budget ends
trials at its rungs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sweeper.records.printing import JsonRecord, counted, json_fields, value_shown, values_shown


@dataclass(frozen=True, slots=True)
class LengthRecord:
    """Result of a trial at one length.

    Attributes:
        epochs: The length: the number of epochs to train.
        trained: Number of epochs trained, which is smaller after an early stop or pruning.
        state: State at its end: "complete" or "pruned".
        value: The objective, the first of several; None for a pruned trial without one.
        digest: Digest of the training state at its end.
        at: Time of its end, by the database's clock.
        values: Values by objective, in a study with several; None otherwise.

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
        values = {"value": self.value} if self.values is None else self.values
        epochs = counted(self.trained, "epoch")
        return f"{self.state} after {epochs} of {self.epochs}, {values_shown(values)}"

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
        epochs: Total number of epochs to train, including finished ones.
        trials: Numbers of the trials; None for the whole study, with its complete, unfinished and
            future trials.
        best: Number of the best trials to extend, instead of ``trials``; None otherwise.
    """

    epochs: int
    trials: tuple[int, ...] | None = None
    best: int | None = None


@dataclass(frozen=True, slots=True)
class ExtensionPlan:
    """Changes of an extension.

    Attributes:
        reopened: Former lengths of the finished trials that continue, by number.
        lengthened: Former lengths of the extended unfinished trials, by number.
        raised: Whether trials that have not started are extended, too.
    """

    reopened: Mapping[int, int]
    lengthened: Mapping[int, int]
    raised: bool

    @property
    def begun(self) -> Mapping[int, int]:
        """Return the former lengths of all extended trials that have started, by number."""
        return {**self.reopened, **self.lengthened}

    def __bool__(self) -> bool:
        return bool(self.reopened or self.lengthened or self.raised)


@dataclass(frozen=True, slots=True)
class ComparedTrial(JsonRecord):
    """One trial in a rung's decision.

    Attributes:
        number: The trial's number.
        value: Its objective at the rung; None if it had failed or the objective is NaN.
        promoted: Whether it was promoted.
    """

    number: int
    value: float | None
    promoted: bool


@dataclass(frozen=True, slots=True)
class RungDecision(JsonRecord):
    """A decided rung of one round.

    Attributes:
        bracket: Number of the bracket, from 0.
        first: Number of the round's first trial.
        epochs: Number of epochs after which its trials paused.
        decided_at: Time of the decision, by the database's clock.
        compared: The compared trials, by number.
    """

    bracket: int
    first: int
    epochs: int
    decided_at: datetime
    compared: tuple[ComparedTrial, ...]


@dataclass(frozen=True, slots=True)
class RungRecord(JsonRecord):
    """One trial at one rung.

    Attributes:
        epochs: Number of epochs of the rung; the trial paused then or had ended before.
        value: Its objective at the rung; None if it had failed or the objective is NaN.
        promoted: Whether it was promoted; None before the decision.
        decision: Decision of the rung with all compared trials; None before it.

    Examples:
        >>> study.results().best.rungs  # empty without a budget
        ()
    """

    epochs: int
    value: float | None
    promoted: bool | None
    decision: RungDecision | None = None

    def __str__(self) -> str:
        decided = {None: "not decided", True: "promoted", False: "ended"}[self.promoted]
        return f"rung after {counted(self.epochs, 'epoch')}: value={value_shown(self.value)}, {decided}"
