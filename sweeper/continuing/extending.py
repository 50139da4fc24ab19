"""The request to have finished trials train on, from the arguments of `Study.extend`."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.declared.arguments import checked_whole
from sweeper.errors import UsageError
from sweeper.records.lengths import Extension


def asked_extension(
    epochs: int | Extension | None, trials: Sequence[int] | None = None, best: int | None = None
) -> Extension | None:
    """Return the request as one record; None where nothing is asked for.

    Raises:
        DefinitionError: A number is not a whole one, or too small.
        UsageError: Both trials and a number of the best ones are named.
    """
    if epochs is None or isinstance(epochs, Extension):
        return epochs
    if trials is not None and best is not None:
        msg = "both trials and best were given; name trials, or say how many of the best"
        raise UsageError(msg)
    return Extension(
        checked_whole(epochs, "epochs", least=1),
        None
        if trials is None
        else tuple(checked_whole(number, "trials", least=0) for number in trials),
        None if best is None else checked_whole(best, "best", least=1),
    )
