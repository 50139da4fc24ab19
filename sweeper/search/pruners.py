"""Optuna's pruners, made again from the plain values that the database keeps of them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.pruners import BasePruner

from sweeper.errors import DefinitionError

_BLIND = ("NopPruner", "ThresholdPruner")
"""Pruners that look at the trial itself and at no other one."""

_LEAVING_NOTHING = (
    "MedianPruner",
    "NopPruner",
    "PercentilePruner",
    "ThresholdPruner",
    "WilcoxonPruner",
)
"""Pruners that write nothing to a trial which a later question reads."""


_silence = threading.RLock()


@contextmanager
def quietly() -> Iterator[None]:
    """Silence what pruners warn of, which names trials and calls that the user never made.

    One thread at a time: Python's filters of warnings belong to the whole process.
    """
    with _silence, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def is_custom(described: Mapping[str, Any] | None) -> bool:
    """Return whether the pruner, or one inside it, is of a class that is not Optuna's."""
    if described is None:
        return False
    return str(described["class"]).startswith("custom:") or any(
        is_custom(part) for part in described.values() if isinstance(part, Mapping)
    )


def looks_at_trials(described: Mapping[str, Any] | None) -> bool:
    """Return whether the pruner compares a trial with others, and so needs a window.

    A pruner of the user's own is taken as one that does.
    """
    if described is None or described["class"] in _BLIND:
        return False
    if described["class"] == "PatientPruner":
        return looks_at_trials(described.get("wrapped_pruner"))
    return True


def leaves_attributes(pruner: BasePruner | None) -> bool:
    """Return whether the pruner writes attributes to trials, as successive halving does with its rungs."""
    if isinstance(pruner, optuna.pruners.PatientPruner):
        return leaves_attributes(pruner._wrapped_pruner)
    own = type(pruner).__module__.startswith("optuna.pruners.")
    return pruner is not None and not (own and type(pruner).__name__ in _LEAVING_NOTHING)


def make_pruner(described: Mapping[str, Any]) -> BasePruner:
    """Make the pruner that `sweeper.declared.searching.describe_pruner` described.

    Raises:
        DefinitionError: Optuna has no such pruner, or refuses its arguments.
    """
    kind = getattr(optuna.pruners, str(described["class"]), None)
    if not isinstance(kind, type) or not issubclass(kind, BasePruner):
        msg = (
            f"the study's pruner is a {described['class']}, which optuna {optuna.__version__} does "
            "not have; install the version that the study was created with"
        )
        raise DefinitionError(msg)
    arguments = {
        name: make_pruner(value) if isinstance(value, Mapping) else value
        for name, value in described.items()
        if name != "class"
    }
    try:
        with quietly():
            return kind(**arguments)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        msg = f"optuna refuses {described['class']}({given}): {error}"
        raise DefinitionError(msg) from error
