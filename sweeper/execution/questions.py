"""What a trial asks its worker, and the answers: a parameter's value, and whether to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, with_config

from sweeper.execution.wire import SentDistribution
from sweeper.space import CategoricalChoice

__all__ = ["Judge", "Judged", "Suggest", "Suggested"]

_config = ConfigDict(extra="forbid")


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Suggest:
    """Up, awaiting `Suggested`: a value for the parameter ``name``."""

    name: str
    distribution: SentDistribution
    kind: Literal["suggest"] = "suggest"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Suggested:
    """Down: the value, or why there is none (``error``)."""

    value: CategoricalChoice
    error: str | None = None
    kind: Literal["suggested"] = "suggested"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Judge:
    """Up, awaiting `Judged`: whether to end here; with the objective of every epoch so far."""

    values: tuple[tuple[int, float], ...]
    kind: Literal["judge"] = "judge"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Judged:
    """Down: whether the study's pruner ends the trial, or why it could not say (``error``)."""

    prune: bool
    error: str | None = None
    kind: Literal["judged"] = "judged"
