"""Policy for a trial that raises, dies or takes too long; checked when it is declared.

None of it changes what a trial's result is, only when one is given up. So unlike the rest of a
definition it may differ from run to run, and the study's file has the last word.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sweeper.errors import DefinitionError
from sweeper.spec.arguments import with_named_arguments

Fault = Literal["crash", "memory", "error", "time"]
"""Why an attempt ended badly.

"crash": its process died. "memory": it died or gave up because memory ran out. "error": the user's
code raised, or the value of the trial is NaN or infinite. "time": it took longer than the study's time limit.
"""


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Retries:
    """Number of times that a trial is resumed from its newest checkpoint, for each kind of fault.

    A trial that was preempted, interrupted or lost with its worker goes on without any limit: none
    of that is its own doing. One that took longer than ``time_limit`` never does.

    Attributes:
        crash: After its process died, 3 times by default; the fourth death fails the trial.
        memory: After memory ran out, 3 times by default.
        error: After an exception of the user's own code, or a value that is NaN or infinite. Never
            by default: the same steps raise the same exception.

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
    """Return ``retries``, which may be a mapping of kinds to numbers; None for the defaults.

    Raises:
        DefinitionError: It is neither, names an unknown kind, or holds no whole number from 0 on.
    """
    if retries is None:
        return Retries()
    kinds = tuple(field.name for field in dataclasses.fields(Retries))
    expected = f"give a mapping such as {{'crash': 3, 'error': 1}} of {', '.join(kinds)}"
    if not isinstance(retries, Mapping | Retries):
        msg = f"retries={retries!r}; {expected}"
        raise DefinitionError(msg)
    given = retries.to_json() if isinstance(retries, Retries) else dict(retries)
    for kind, number in given.items():
        if kind not in kinds:
            msg = f"retries names {kind!r}, which is not a kind of fault; {expected}"
            raise DefinitionError(msg)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            msg = f"retries[{kind!r}]={number!r}; give a whole number, at least 0"
            raise DefinitionError(msg)
    return Retries(**given)


def checked_seconds(value: Any, name: str) -> float | None:
    """Return a limit in seconds; None for none.

    Raises:
        DefinitionError: It is no finite number above 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        seconds = math.nan
    else:
        seconds = float(value)
    if not (math.isfinite(seconds) and seconds > 0):
        msg = f"{name}={value!r}; give a number of seconds above 0, or None for no limit"
        raise DefinitionError(msg)
    return seconds
