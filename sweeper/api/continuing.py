"""Arguments of `Study.extend` as one request."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.errors import UsageError
from sweeper.records.lengths import Extension
from sweeper.spec.arguments import checked_whole


def asked_extension(
    epochs: int | Extension | None, trials: Sequence[int] | None = None, best: int | None = None
) -> Extension | None:
    """Return the request as one record; None if no extension is requested.

    Raises:
        DefinitionError: A number is not whole, or is too small.
        UsageError: Both ``trials`` and ``best`` are given.
    """
    if epochs is None or isinstance(epochs, Extension):
        return epochs
    if trials is not None and best is not None:
        msg = "both trials= and best= were given; give one of them"
        raise UsageError(msg)
    return Extension(
        checked_whole(epochs, "epochs", least=1),
        None
        if trials is None
        else tuple(checked_whole(number, "trials", least=0) for number in trials),
        None if best is None else checked_whole(best, "best", least=1),
    )
