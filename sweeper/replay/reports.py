"""Reports of a replay's process on the user's code and its lengths: plain frozen values, sent through a pipe."""

from dataclasses import dataclass

from sweeper.records.findings import Line


@dataclass(frozen=True, slots=True)
class UserObject:
    """A factory or a callback, described for another process.

    Attributes:
        name: Its name in messages.
        line: Where it is defined; None for a library's.
        measured: For a callback: the attributes, keys and metrics with measured times.
    """

    name: str
    line: Line | None = None
    measured: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name} ({self.line})"


@dataclass(frozen=True, slots=True)
class UserObjects:
    """Factories that the user wrote, and the callbacks in their order, a library's too."""

    model: UserObject
    data: UserObject
    callbacks: tuple[UserObject, ...] = ()

    @property
    def users(self) -> tuple[str, ...]:
        """Return the callbacks that the user wrote, each with its line."""
        return tuple(dict.fromkeys(f"callback {c}" for c in self.callbacks if c.line is not None))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Length of an epoch of the study, beside that of a shortened trial.

    Attributes:
        steps: Steps of an epoch; None if unknown.
        times: How many times as long it is, by its steps or by its validation.
    """

    steps: int | None
    times: float
