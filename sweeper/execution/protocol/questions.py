"""What a trial asks its worker, and the answers: a parameter's value, and whether to end."""

from __future__ import annotations

from typing import Literal

from sweeper.declared.space import CategoricalChoice
from sweeper.errors import ParameterError
from sweeper.execution.protocol.distributions import SentDistribution
from sweeper.execution.protocol.sendable import sendable


@sendable
class Suggest:
    """Up, awaiting `Suggested`: a value for the parameter ``name``."""

    name: str
    distribution: SentDistribution
    kind: Literal["suggest"] = "suggest"


@sendable
class Suggested:
    """Down: the value, or why there is none (``error``)."""

    value: CategoricalChoice
    error: str | None = None
    kind: Literal["suggested"] = "suggested"

    def accepted(self) -> CategoricalChoice:
        """The value.

        Raises:
            ParameterError: There is none.
        """
        if self.error is not None:
            raise ParameterError(self.error)
        return self.value


@sendable
class Judge:
    """Up, awaiting `Judged`: whether to end here; with the objective of every epoch so far."""

    values: tuple[tuple[int, float], ...]
    kind: Literal["judge"] = "judge"


@sendable
class Judged:
    """Down: whether the study's pruner ends the trial, or why it could not say (``error``)."""

    prune: bool
    error: str | None = None
    kind: Literal["judged"] = "judged"
