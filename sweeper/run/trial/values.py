"""Value of a trial: the objective of the weights that it delivers, or of the epoch that ``at`` names.

Callbacks may leave other weights at the end of a training than those of its last epoch:
``EarlyStopping`` restores the best epoch's, others put averages in. The trial's model is what is
delivered, so by default the value is of its weights, and not of weights that nobody receives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sweeper.errors import ObjectiveError
from sweeper.run.protocol.messages import Assignment
from sweeper.spec.searching import value_at
from sweeper.train.loop.logs import check_value
from sweeper.train.loop.loop import TrainingLoop


@dataclass(frozen=True, slots=True)
class FinalValues:
    """Objectives of a complete trial, in order, and what they are of: see `TrialRecord.value_of`."""

    values: tuple[float, ...]
    value_of: str | None = None


def final_values(
    loop: TrainingLoop, assignment: Assignment, warn: Callable[[str], None]
) -> FinalValues:
    """Return the objectives of a complete trial.

    Args:
        loop: The training, after its end.
        assignment: The trial's, with its objectives and ``at``.
        warn: Called where the value is not of the delivered weights.

    Raises:
        ObjectiveError: An objective was never reported.
        NonFiniteError: An objective is NaN or infinite.
    """
    found = _final_values(loop, assignment, warn)
    names = (assignment.objective, *assignment.further_objectives)
    for name, value in zip(names, found.values, strict=True):
        check_value(name, value, assignment.at, loop.position.epoch)
    return found


def last_value(loop: TrainingLoop, assignment: Assignment) -> float:
    """Return the value of a trial that is pruned or pauses.

    Raises:
        ObjectiveError: The objective was never reported.
    """
    values = [value for _, value in _reported(loop, assignment.objective)]
    return value_at(values, assignment.at, assignment.direction)


def _final_values(
    loop: TrainingLoop, assignment: Assignment, warn: Callable[[str], None]
) -> FinalValues:
    names = (assignment.objective, *assignment.further_objectives)
    reported = [_reported(loop, name) for name in names]
    last, (end, _) = tuple(values[-1][1] for values in reported), reported[0][-1]
    if assignment.at == "best":
        value = last_value(loop, assignment)
        best = next(epoch for epoch, own in reported[0] if own is value)
        return FinalValues((value,), None if best == end else f"epoch {best + 1}")
    epoch = loop.delivered_epoch(names)
    if epoch == end:
        return FinalValues(last)
    metrics = loop.measure() if epoch is None else loop.epochs[epoch].metrics
    if any(name not in metrics for name in names):
        warn(
            f"callbacks or the optimizer changed the weights after the last epoch, and only metrics "
            f"of the validation can be measured again; the value is {names[0]!r} at the last epoch, "
            "and not that of the weights that load_model() returns. Choose a val_… objective"
        )
        return FinalValues(last)
    found = tuple(metrics[name] for name in names)
    if assignment.at == "last":
        warn(
            f"at='last': the value is {names[0]!r} at the last epoch, {last[0]:.6g}; that of the "
            f"weights that load_model() returns is {found[0]:.6g}"
        )
        return FinalValues(last)
    return FinalValues(found, "after training" if epoch is None else f"epoch {epoch + 1}")


def _reported(loop: TrainingLoop, objective: str) -> list[tuple[int, float]]:
    """Return the epochs (from 0) that reported an objective, with its values."""
    values = [(e.epoch, e.metrics[objective]) for e in loop.epochs if objective in e.metrics]
    if not values:
        reported = ", ".join(map(repr, sorted({n for e in loop.epochs for n in e.metrics})))
        msg = f"the objective {objective!r} was never reported; the epochs reported {reported}"
        raise ObjectiveError(msg)
    return values
