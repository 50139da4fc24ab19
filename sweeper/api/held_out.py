"""Held-out data for an evaluation: from the study, a file, or a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from sweeper.definition.loading import split_target
from sweeper.definition.trial import Trial
from sweeper.errors import UsageError
from sweeper.run.launch.sources import pickle_by_value
from sweeper.run.protocol.messages import HeldOutData
from sweeper.train.data import Data

DataGiven = str | Data | Callable[[Trial], Data]
"""``FILE:NAME``, a `Data`, or a function ``trial -> Data``."""


def held_out_data(given: DataGiven | None) -> HeldOutData:
    """Return a description of the held-out data that trial processes can load.

    Args:
        given: The caller's argument; None for the study's own ``Data(test=…)``.

    Raises:
        UsageError: It has the wrong type, there is no such file, or it cannot be sent.
    """
    if given is None:
        return HeldOutData()
    if isinstance(given, str):
        location, name = split_target(given)
        if name is None or not location:
            msg = (
                f"--data {given!r} names no function; expected FILE:NAME, where NAME is a function "
                "`trial -> Data`, or a Data, in that file"
            )
            raise UsageError(msg)
        path = Path(location)
        if path.suffix == ".py" and not path.is_file():
            what = "is a directory" if path.is_dir() else "does not exist"
            msg = f"{location} {what}; expected --data FILE:NAME with a Python file"
            raise UsageError(msg)
        target = f"{path.resolve()}:{name}" if path.is_file() else given
        return HeldOutData(target=target, shown=given)
    if not isinstance(given, Data) and not callable(given):
        msg = (
            f"data={given!r}; expected a function `trial -> Data`, a sweeper.Data(test=(x, y)), or "
            "'FILE:NAME'"
        )
        raise UsageError(msg)
    shown = "data" if isinstance(given, Data) else getattr(given, "__qualname__", repr(given))
    try:
        pickled = pickle_by_value(given)
    except Exception as error:
        msg = (
            f"the data {shown} cannot be sent to the evaluation processes: {error}; give a "
            "function `trial -> Data` that makes the data"
        )
        raise UsageError(msg) from error
    return HeldOutData(pickled=pickled, path=tuple(sys.path), shown=shown)
