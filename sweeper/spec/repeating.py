"""Repeats of configurations: numbers and seeds of their trials, and what a confirmation trains.

In a study with ``repeats=R``, trial n is repeat n mod R of configuration n // R. A study that confirms
another one is stored beside it under ``NAME~confirm``; its trials have the other study's numbers of
configurations, and seeds of their own, so that no trial of the search shares one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sweeper.errors import UsageError

CONFIRMING: Final = "~confirm"
"""End of the name of a study that confirms another one."""

_CONFIRMING_SEEDS = 2**32
"""Position of a confirmation's first seed, beyond every trial's number."""


def confirmation_name(study: str) -> str:
    """Return the name of the study that confirms ``study``."""
    return f"{study}{CONFIRMING}"


def is_confirmation(study: str) -> bool:
    """Return whether this is the name of a study that confirms another one."""
    return study.endswith(CONFIRMING)


def confirmed_name(study: str) -> str:
    """Return the name of the study that is confirmed, or ``study`` itself."""
    return study.removesuffix(CONFIRMING)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeat of a trial in its study.

    Attributes:
        configuration: Number of its configuration; in a confirmation, its index among those confirmed.
        repeat: Which repeat of the configuration it is, from 0.
    """

    configuration: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Numbering:
    """Numbers of a study's trials, by configuration and repeat.

    Attributes:
        repeats: Repeats of each configuration of a search.
        confirmed: Number of confirmed configurations; 0 for a search. Their trials are numbered round
            by round, with gaps where a configuration is not trained again.
    """

    repeats: int = 1
    confirmed: int = 0

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Numbering:
        """Return the numbering of a stored definition."""
        confirm = definition.get("confirm")
        return cls(definition.get("repeats", 1), len(confirm["configurations"]) if confirm else 0)

    @property
    def is_plain(self) -> bool:
        """Return whether each configuration is trained once."""
        return self.repeats == 1 and not self.confirmed

    def repeat_of(self, number: int) -> Repeat:
        """Return the configuration and repeat of trial ``number``."""
        if self.confirmed:
            repeat, configuration = divmod(number, self.confirmed)
            return Repeat(configuration, repeat)
        return Repeat(*divmod(number, self.repeats))

    def number(self, configuration: int, repeat: int) -> int:
        """Return the number of the trial of a configuration and repeat."""
        if self.confirmed:
            return repeat * self.confirmed + configuration
        return configuration * self.repeats + repeat

    def seed_position(self, number: int) -> int:
        """Return the position of the trial's seed among those of its study's seed."""
        if self.confirmed:
            return _CONFIRMING_SEEDS + self.repeat_of(number).repeat
        return number if self.repeats == 1 else self.repeat_of(number).repeat


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Configurations to train again, and how often.

    Attributes:
        configurations: Their numbers in the confirmed study, the leading one first.
        repeats: Repeats of each of them.
        at_most: Most repeats of one of them: further rounds train those that are not yet
            distinguishable from the leader. Equal to ``repeats`` for no further rounds.
    """

    configurations: tuple[int, ...]
    repeats: int
    at_most: int

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "configurations": list(self.configurations),
            "repeats": self.repeats,
            "at_most": self.at_most,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Confirmation:
        """Return the inverse of `to_json`."""
        return cls(tuple(values["configurations"]), values["repeats"], values["at_most"])


@dataclass(frozen=True, slots=True)
class ConfirmRequest:
    """Request to confirm the leading configurations of a study.

    Attributes:
        best: How many of the leading configurations.
        trials: Numbers of trials whose configurations are confirmed, instead of ``best``.
        repeats: Repeats of each configuration.
        at_most: Most repeats of one configuration; None for ``repeats``.
        chosen: Whether the configurations were chosen, so that ``best`` is not the default.
    """

    best: int | None = None
    trials: tuple[int, ...] = ()
    repeats: int = 5
    at_most: int | None = None
    chosen: bool = True

    def checked(self) -> ConfirmRequest:
        """Return the request, with ``best=5`` if neither it nor trials are given.

        Raises:
            UsageError: Both are given, a number is too small, or ``at_most`` is below ``repeats``.
        """
        if self.best is not None and self.trials:
            msg = "--best and --trial were both given; give one of them"
            raise UsageError(msg)
        if self.repeats < 2:
            msg = f"repeats={self.repeats}; a confirmation takes at least 2, by which it knows the spread"
            raise UsageError(msg)
        at_most = self.repeats if self.at_most is None else self.at_most
        if at_most < self.repeats:
            msg = f"at_most={at_most} is below repeats={self.repeats}; give at least {self.repeats}"
            raise UsageError(msg)
        chosen = self.best is not None or bool(self.trials)
        best = self.best if chosen else 5
        if best is not None and best < 2:
            msg = f"best={best}; a confirmation compares at least 2 configurations"
            raise UsageError(msg)
        return ConfirmRequest(best, self.trials, self.repeats, at_most, chosen)
