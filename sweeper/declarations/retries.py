"""Retry policy for a trial that raises, dies or takes too long; checked when it is declared.

It does not affect a trial's result, only when a trial fails. So unlike the rest of a definition it
may differ from run to run; the values in the study's file apply.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sweeper.declarations.arguments import checked_whole, with_named_arguments
from sweeper.errors import DefinitionError
from sweeper.support.shown import shown_value

Fault = Literal["crash", "memory", "error", "time"]
"""Kind of fault that ended an attempt.

"crash": its process died. "memory": it died or gave up because memory ran out. "error": the user's
code raised, or the value of the trial is NaN or infinite. "time": it took longer than the study's time limit.
"""


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Retries:
    """Number of times that a trial is resumed from its newest checkpoint, for each kind of fault.

    Preemptions, interruptions and lost workers are not limited, because the trial did not cause
    them. A trial that took longer than ``time_limit`` is not resumed.

    Attributes:
        crash: After its process died, 3 by default; the fourth time the trial fails.
        memory: After memory ran out, 3 by default.
        error: After an exception of the user's code, or a value of NaN or infinity; 0 by default,
            because the same steps raise the same exception.

    Examples:
        >>> sweeper.Retries(crash=1).after("memory")
        3
    """

    crash: int = 3
    memory: int = 3
    error: int = 0

    def after(self, fault: Fault) -> int:
        """Return how many times a trial is resumed after faults of this kind.

        Args:
            fault: ``"crash"``, ``"memory"``, ``"error"`` or ``"time"``.
        """
        return {"crash": self.crash, "memory": self.memory, "error": self.error, "time": 0}[fault]

    def to_json(self) -> dict[str, int]:
        return dataclasses.asdict(self)


def checked_retries(retries: Any) -> Retries:
    """Return ``retries``, which may be a mapping of kinds to numbers; None for the defaults."""
    if retries is None:
        return Retries()
    kinds = tuple(field.name for field in dataclasses.fields(Retries))
    expected = f"give a mapping such as {{'crash': 3, 'error': 1}} of {', '.join(kinds)}"
    if not isinstance(retries, Mapping | Retries):
        raise DefinitionError(f"retries={shown_value(retries)}; {expected}")
    limits = retries.to_json() if isinstance(retries, Retries) else dict(retries)
    for kind, number in limits.items():
        if kind not in kinds:
            raise DefinitionError(
                f"retries names {shown_value(kind)}, which is not a kind of fault; {expected}"
            )
        checked_whole(number, f"retries[{shown_value(kind)}]", least=0)
    return Retries(**limits)


def checked_seconds(value: Any, name: str) -> float | None:
    """Return a limit in seconds, a finite number above 0; None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        seconds = math.nan
    else:
        seconds = float(value)
    if not (math.isfinite(seconds) and seconds > 0):
        raise DefinitionError(
            f"{name}={shown_value(value)}; give a number of seconds above 0, or None for no limit"
        )
    return seconds
