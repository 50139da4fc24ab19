"""What steps and epochs report: as callbacks get it, and number by number.

A metric may be a vector, such as ``keras.metrics.F1Score()``. Callbacks and the history get it whole,
as ``fit`` gives it; what is stored and shown, compared and chosen by is numbers, so each component
has a name of its own there: ``f1_score[0]``, and ``confusion[0,1]`` where there are more dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from sweeper.errors import ObjectiveError
from sweeper.training.sources.runner import Shapes

MOST_COMPONENTS = 1000
"""Of a metric that is stored number by number; each is a value of every epoch in the database."""

_NUMBERS = "biuf"
_SHOWN = 12


def metrics_or_logs(taken: Any, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's metrics, unless a custom step reports others; as ``fit`` decides it.

    Args:
        taken: The model, or the `TrainingStep` that is taken instead of the model's own: then the
            last step's logs count, whatever their names.
        logs: What the last step reported.
    """
    if not isinstance(taken, keras.Model):
        return logs
    metrics: Mapping[str, Any] = taken.get_metrics_result()
    return metrics if set(metrics) == set(logs) else logs


def to_python(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs as Keras gives them to callbacks: floats, and arrays where a metric is a vector."""
    from keras.src.utils.python_utils import pythonify_logs

    return dict(pythonify_logs(logs))


def named_numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a metric, each with its name; none where it is neither a number nor an array.

    Args:
        name: The metric's.
        value: What was reported.

    Examples:
        >>> import numpy as np
        >>> from sweeper.training.loop.logs import named_numbers
        >>> dict(named_numbers("f1_score", np.array([0.5, 1.0])))
        {'f1_score[0]': 0.5, 'f1_score[1]': 1.0}
    """
    if isinstance(value, int | float):
        yield name, float(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMBERS:
        for at, number in np.ndenumerate(value):
            yield _component(name, at), float(number)


def log_shapes(outputs: Mapping[str, Any]) -> dict[str, tuple[int | None, ...]]:
    """The shapes of what a traced step returns, nested dicts flattened as callbacks see them."""
    found: dict[str, tuple[int | None, ...]] = {}
    for name, output in outputs.items():
        if isinstance(output, Mapping):
            found.update(log_shapes(output))
            continue
        shape = getattr(output, "shape", None)
        sizes = () if shape is None or shape.rank is None else tuple(shape.as_list())
        # Keras makes a float of whatever has one element.
        found[name] = () if all(size == 1 for size in sizes) else sizes
    return found


def check_objective(objective: str, reported: Shapes, hint: str = "") -> None:
    """Refuse an objective that no epoch will report as one number.

    Args:
        objective: What the user calls it.
        reported: What the epochs report.
        hint: Why it may be missing.

    Raises:
        ObjectiveError: It is missing, or a vector; the names to choose from are listed.
    """
    if reported.get(objective) == () or objective.removeprefix("val_") == "learning_rate":
        return
    if objective in reported:
        components = list(_names(objective, reported[objective]))
        msg = (
            f"the objective {objective!r} is a metric of shape {list(reported[objective])}, and an "
            f"objective is one number; name a component, {_listed(components)}, or give the "
            "metric an average (average='macro', say)"
        )
        raise ObjectiveError(msg)
    whole = objective.partition("[")[0]
    shape = reported.get(whole)
    if shape is not None and (None in shape or objective in _names(whole, shape)):
        return
    names = {each for name, shape in reported.items() for each in _names(name, shape)}
    listed = sorted(names) if len(names) <= MOST_COMPONENTS else sorted(reported)
    msg = (
        f"the objective is {objective!r}, and the model reports no such metric{hint}; it "
        f"reports {', '.join(map(repr, listed))}: name one of these"
    )
    raise ObjectiveError(msg)


def _names(name: str, shape: tuple[int | None, ...]) -> Iterator[str]:
    if None in shape:
        yield f"{name}[…]"
        return
    for at in np.ndindex(*(size or 0 for size in shape)):
        yield _component(name, at)


def _component(name: str, at: Iterable[int]) -> str:
    shown = ",".join(map(str, at))
    return f"{name}[{shown}]" if shown else name


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown}, … (to {names[-1]!r})"
