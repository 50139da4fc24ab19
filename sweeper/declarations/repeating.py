"""Repeats of configurations: numbers and seeds of their trials, and what a confirmation trains.

In a study with ``repeats=R``, trial n is repeat n mod R of configuration n // R. A study that confirms
another one is stored beside it under ``NAME~confirm``; its trials have the other study's numbers of
configurations, and different seeds, so that no trial of the search shares one.
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


@dataclass(frozen=True, slots=True)
class Repeating:
    """How often a study trains each configuration, and which trial is which repeat of which.

    Attributes:
        repeats: Repeats of each configuration; in a confirmation, those before its first test.
        confirmed: Numbers of the confirmed configurations in their own study, the leading one first;
            empty for a search. Their trials are numbered round by round, with gaps where a
            configuration is not trained again.
        at_most: Most repeats of a confirmed configuration: further rounds train those that are not
            yet distinguishable from the leader. Equal to ``repeats`` for no further rounds.
    """

    repeats: int = 1
    confirmed: tuple[int, ...] = ()
    at_most: int = 1

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Repeating:
        confirm = definition.get("confirm")
        if confirm:
            return cls(confirm["repeats"], tuple(confirm["configurations"]), confirm["at_most"])
        return cls(definition.get("repeats", 1))

    def to_confirm(self) -> dict[str, Any]:
        """Return the stored form of a confirmation, which `of` reads."""
        return {
            "configurations": list(self.confirmed),
            "repeats": self.repeats,
            "at_most": self.at_most,
        }

    @property
    def is_single(self) -> bool:
        """Return whether each configuration is trained once."""
        return self.repeats == 1 and not self.confirmed

    def index_of(self, number: int) -> int:
        """Return the index of a trial's configuration among those of this study."""
        return number % len(self.confirmed) if self.confirmed else number // self.repeats

    def configuration_of(self, number: int) -> int:
        """Return the number of a trial's configuration; in a confirmation, that in the other study."""
        index = self.index_of(number)
        return self.confirmed[index] if self.confirmed else index

    def repeat_of(self, number: int) -> int:
        """Return which repeat of its configuration a trial is, from 0."""
        return number // len(self.confirmed) if self.confirmed else number % self.repeats

    def number(self, configuration: int, repeat: int) -> int:
        """Return the number of the trial of a configuration and repeat."""
        if self.confirmed:
            return repeat * len(self.confirmed) + self.confirmed.index(configuration)
        return configuration * self.repeats + repeat

    def seed_position(self, number: int, proposals: int = 0) -> int:
        """Return the position of the trial's seed among those of its study's seed.

        ``proposals`` is the number of earlier proposals of its configuration, whose seeds precede its own.
        """
        if self.confirmed:
            return _CONFIRMING_SEEDS + self.repeat_of(number)
        if self.repeats == 1:
            return number
        return self.repeat_of(number) + proposals * self.repeats


@dataclass(frozen=True, slots=True)
class ConfirmRequest:
    """Request to confirm the leading configurations of a study.

    Attributes:
        best: How many of the leading configurations; None for those that are being confirmed, or 5.
        trials: Numbers of trials whose configurations are confirmed, instead of ``best``.
        repeats: Repeats of each configuration.
        at_most: Most repeats of one configuration; None for ``repeats``.

    Raises:
        UsageError: ``best`` and ``trials`` are given, or a number is too small.
    """

    best: int | None = None
    trials: tuple[int, ...] = ()
    repeats: int = 5
    at_most: int | None = None

    def __post_init__(self) -> None:
        msg = None
        if self.best is not None and self.trials:
            msg = "--best and --trial were both given; give one of them"
        elif self.repeats < 2:
            msg = f"repeats={self.repeats}; a confirmation takes at least 2, by which it knows the spread"
        elif self.at_most is not None and self.at_most < self.repeats:
            msg = f"at_most={self.at_most} is below repeats={self.repeats}; give at least {self.repeats}"
        elif self.best is not None and self.best < 2:
            msg = f"best={self.best}; a confirmation compares at least 2 configurations"
        if msg is not None:
            raise UsageError(msg)
