"""Logs of steps and epochs: forms for callbacks and for storage, and checks of objectives.

A metric may be an array, such as ``keras.metrics.F1Score()``. Callbacks and the history get the array,
as in ``fit``. Stored, displayed and compared are its components, each with its own name:
``f1_score[0]``, or ``confusion[0,1]`` with more dimensions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from sweeper.declarations.searching import At, NonFinite
from sweeper.errors import NonFiniteError, ObjectiveError
from sweeper.records.results import EpochRecord
from sweeper.train.data import Data
from sweeper.train.sources.runner import Shapes

MOST_COMPONENTS = 1000
"""Largest number of components of a metric that are stored."""

_NUMBERS = "biuf"


def metrics_or_logs(trainer: Any, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of ``trainer``, a model, unless its step's ``logs`` have other names, as in ``fit``.

    Of a `TrainingStep` the logs count.
    """
    if not isinstance(trainer, keras.Model):
        return logs
    metrics: Mapping[str, Any] = trainer.get_metrics_result()
    return metrics if set(metrics) == set(logs) else logs


def to_python(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs in Keras's form for callbacks: floats, and arrays for vector metrics."""
    # The conversion of `fit`, so that callbacks receive the same types.
    from keras.src.utils.python_utils import pythonify_logs

    return dict(pythonify_logs(logs))


def named_numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the components of a metric with their names; none if it is neither a number nor an array."""
    if keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)
    if isinstance(value, int | float):
        yield name, float(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMBERS:
        for index, number in np.ndenumerate(value):
            yield _component(name, index), float(number)


def log_shapes(outputs: Mapping[str, Any]) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of a traced step's logs, with nested dicts flattened as for callbacks."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, output in outputs.items():
        if isinstance(output, Mapping):
            shapes.update(log_shapes(output))
            continue
        shape = getattr(output, "shape", None)
        sizes = () if shape is None or shape.rank is None else tuple(shape.as_list())
        # Keras converts every array with one element to a float.
        shapes[name] = () if all(size == 1 for size in sizes) else sizes
    return shapes


def check_objective(
    objective: str, reported: Shapes, hint: str = "", *, by_callbacks: bool = False
) -> None:
    """Refuse an objective that is missing in the logs of an epoch, of these shapes, or is an array.

    The error lists the possible names, after ``hint``, a possible reason. With ``by_callbacks``, callbacks
    were called that may have added metrics.
    """
    if reported.get(objective) == () or objective.removeprefix("val_") == "learning_rate":
        return
    if objective in reported:
        raise ObjectiveError(
            f"the objective {objective!r} is a metric of shape {list(reported[objective])}, and "
            f"an objective must be one number; name a component, {_shown(objective, reported[objective])}, "
            "or give the metric an average (average='macro', say)"
        )
    whole = objective.partition("[")[0]
    shape = reported.get(whole)
    if shape is not None and (
        None in shape
        or any(
            _component(whole, index) == objective
            for index in np.ndindex(*(size or 0 for size in shape))
        )
    ):
        return
    listed = ", ".join(_shown(name, shape) for name, shape in sorted(reported.items()))
    msg = (
        f"the model does not report the objective {objective!r}{hint}; it reports {listed}: name one "
        "of these"
    )
    if by_callbacks:
        msg = (
            f"neither the model nor a callback reported the objective {objective!r}{hint} after the "
            f"first epoch; they reported {listed}: name one of these, or let a callback put it into "
            "the logs of on_epoch_end from the first epoch on"
        )
    raise ObjectiveError(msg)


def _shown(name: str, shape: tuple[int | None, ...]) -> str:
    """Return the name of a metric, or the first and the last of its components."""
    if not shape:
        return repr(name)
    first = _component(name, [0] * len(shape))
    last = _component(name, [size - 1 if size else "…" for size in shape])
    return f"{first!r} to {last!r}"


def _component(name: str, index: Iterable[object]) -> str:
    indices = ",".join(map(str, index))
    return f"{name}[{indices}]" if indices else name


def check_rungs(rungs: Sequence[int], objective: str, data: Data) -> None:
    """Raise ObjectiveError if the epoch before a rung, where trials pause, will not report the objective."""
    if not objective.startswith("val_") or (data.validation is None and not data.validation_split):
        return
    silent = [epochs for epochs in rungs if not data.validates_after(epochs - 1)]
    if silent:
        raise ObjectiveError(
            f"trials are compared by {objective!r} after {' and '.join(map(str, silent))} epochs, "
            f"and with validation_freq={data.validation_freq!r} there is no validation then; "
            "leave validation_freq out, or choose the budget's min_epochs and factor so that "
            "each rung follows an epoch with validation"
        )


def check_rung(objective: str, last: EpochRecord) -> None:
    """Raise ObjectiveError if the epoch after which a training pauses did not report the objective."""
    if objective not in last.metrics:
        raise ObjectiveError(
            f"trials are compared by {objective!r} after epoch {last.epoch + 1}, but that epoch "
            f"reported only {', '.join(map(repr, sorted(last.metrics)))}; report it after every "
            "epoch, or choose another budget or objective"
        )


class Reported:
    """Metrics that the epochs of one training report; each objective must be reported as one number.

    ``notify`` is called with metrics that are too large to be stored by component, and with the first
    loss or objective that is NaN or infinite, unless that ends the training.
    """

    def __init__(
        self,
        objectives: Sequence[str],
        epochs: int,
        notify: Callable[[str], None],
        nonfinite: NonFinite = "continue",
    ) -> None:
        self._objectives = tuple(objectives)
        self._epochs = epochs
        self._notify = notify
        self._nonfinite = nonfinite
        self._too_large: set[str] = set()
        self._by_callbacks = False

    def numbers(self, metric: str, value: Any) -> Iterable[tuple[str, float]]:
        """Return the numbers of a metric to store: all components; of a large array only objectives."""
        numbers = named_numbers(metric, value)
        if np.size(value) <= MOST_COMPONENTS:
            return numbers
        if metric not in self._too_large:
            self._too_large.add(metric)
            self._notify(
                f"the metric {metric!r} has {np.size(value):,} components, and only metrics of up "
                f"to {MOST_COMPONENTS:,} are stored by component; checkpoints and model.history "
                "contain it completely"
            )
        return ((name, number) for name, number in numbers if name in self._objectives)

    def check_before(
        self, train: Shapes | None, test: Shapes | None, *, validates: bool, by_callbacks: bool
    ) -> None:
        """Refuse, before any step runs, an objective that no epoch will report as one number.

        ``train`` and ``test`` are the shapes of the steps' logs, None if they are unknown before it
        runs. With ``by_callbacks``, callbacks may add metrics, which are unknown before the first epoch ends.
        """
        self._by_callbacks = by_callbacks
        if train is None or (validates and test is None) or by_callbacks:
            return
        shapes = dict(train)
        shapes |= {f"val_{name}": shape for name, shape in (test or {}).items()}
        for objective in self._objectives:
            unvalidated = objective.startswith("val_") and not validates
            hint = ", and Data(validation=…) is not given" if unvalidated else ""
            check_objective(objective, shapes, hint)

    def check_after(
        self, logs: Mapping[str, Any], epochs: Sequence[EpochRecord], *, validated: bool
    ) -> None:
        """Refuse an objective that none of the finished ``epochs`` has reported as one number.

        ``logs`` are those of the last one, with what callbacks added. An epoch that is not ``validated``
        lacks metrics that a later one may have.
        """
        shapes = {
            name: np.shape(value)
            for name, value in logs.items()
            if next(named_numbers(name, value), None) is not None
        }
        for objective in self._objectives:
            if any(objective in epoch.metrics for epoch in epochs):
                continue
            later = objective.startswith("val_") and not validated
            if shapes.get(objective) or not later:
                check_objective(objective, shapes, by_callbacks=self._by_callbacks)

    def check_finite(self, epochs: Sequence[EpochRecord], *, ended: bool) -> None:
        """Report a loss or an objective that is NaN or infinite in the last of the finished ``epochs``.

        ``ended`` says that the training ends with it. Only the first such epoch is reported; with ``nonfinite="fail"`` it is a NonFiniteError.
        """
        *earlier, last = epochs
        metric = next(self._not_finite(last), None)
        if metric is None:
            return
        name, value = metric
        problem = f"{name} is {value} at the end of epoch {last.epoch + 1} of {self._epochs}"
        if self._nonfinite == "fail":
            raise NonFiniteError(
                f'{problem}, and Study(nonfinite="fail") ends the trial there: lower the learning rate, '
                "clip the gradients, or look for invalid samples"
            )
        if any(next(self._not_finite(epoch), None) for epoch in earlier):
            return
        if ended:
            self._notify(f"{problem}, where training ends")
            return
        ends = "The callback keras.callbacks.TerminateOnNaN() ends it"
        if self._objectives:
            ends += ', and Study(nonfinite="fail") fails the trial'
        self._notify(f"{problem}; training continues, as in model.fit. {ends}")

    def _not_finite(self, epoch: EpochRecord) -> Iterator[tuple[str, float]]:
        """Yield the losses and objectives of ``epoch`` that are NaN or infinite."""
        decisive = {"loss", *self._objectives}
        for name, value in epoch.metrics.items():
            if (name in decisive or name.startswith("loss[")) and not math.isfinite(value):
                yield name, value


def check_value(objective: str, value: float, at: At, epochs: int) -> None:
    """Raise NonFiniteError if a trial's value after ``epochs`` finished epochs is NaN or infinite."""
    if math.isfinite(value):
        return
    where = f"at the end of the last epoch, {epochs}" if at != "best" else f"in all {epochs} epochs"
    raise NonFiniteError(
        f"the objective {objective!r} is {value} {where}, so the trial cannot be ranked: lower "
        "the learning rate, clip the gradients, or look for invalid samples"
    )
