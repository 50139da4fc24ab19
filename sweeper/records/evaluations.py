"""Results of `sweeper evaluate`: one frozen record for each checkpoint and data set, and their ranking.

A record is read from the database and never written back. Metrics have the names that an epoch's
validation gives them, without ``val_``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sweeper.errors import UsageError
from sweeper.records.printing import counted, json_fields, values_shown
from sweeper.spec.searching import Direction, Objective

_LARGER_IS_BETTER = frozenset(
    {
        *("accuracy", "acc", "auc", "auroc", "precision", "recall", "iou", "dice"),
        *("f1", "score", "r2", "specificity", "sensitivity", "similarity"),
    }
)
_SMALLER_IS_BETTER = frozenset(
    {
        *("loss", "cost", "error", "mse", "mae", "mape", "msle", "rmse", "perplexity"),
        *("crossentropy", "divergence", "hinge", "nll", "deviance"),
    }
)
"""Words of a metric's name that tell its direction, as Keras's own metrics are called."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One checkpoint of a trial, measured on one data set.

    Attributes:
        trial: The trial's number.
        step: Optimizer steps finished when the checkpoint was taken.
        epoch: Epochs finished when it was taken.
        digest: The checkpoint's, as `CheckpointRecord.digest` has it.
        data: What the data are called: ``"test"`` or ``"validation"`` of the study's own data,
            else what ``--data`` was given.
        data_digest: XXH3-128 (hex) of what was read of them: of arrays their contents, of data that
            come in batches their form.
        metrics: What the test step reported, number by number.
        evaluated_at: The database's clock.
        path: The checkpoint's directory; None once it is no longer kept.

    Examples:
        >>> leading = study.evaluate()[0]
        >>> leading.data, sorted(leading.metrics)
        ('test', ['accuracy', 'loss'])
    """

    trial: int
    step: int
    epoch: int
    digest: str
    data: str
    data_digest: str
    metrics: Mapping[str, float]
    evaluated_at: datetime
    path: str | None = None

    def __str__(self) -> str:
        return (
            f"trial {self.trial} at step {self.step} after {counted(self.epoch, 'epoch')} "
            f"on {self.data}: {values_shown(self.metrics)}"
        )

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)


def ranking_objective(
    objectives: Sequence[Objective], metric: str | None, direction: str | None
) -> Objective:
    """Return the metric and direction to rank by.

    Args:
        objectives: The study's.
        metric: A metric's name, with ``val_`` or without; None for the study's first objective.
        direction: ``"maximize"`` or ``"minimize"``; None for the objective's own, where ``metric``
            is one, or else what the metric's name tells.

    Raises:
        UsageError: The direction is none, or not known.
    """
    if direction not in (None, "maximize", "minimize"):
        msg = f"direction {direction!r}; expected 'maximize' or 'minimize'"
        raise UsageError(msg)
    name = (objectives[0].name if metric is None else metric).removeprefix("val_")
    given: Direction | None = (
        "maximize" if direction == "maximize" else "minimize" if direction == "minimize" else None
    )
    for objective in objectives:
        if objective.name.removeprefix("val_") == name:
            return Objective(name, given or objective.direction)
    known = given or _direction_of(name)
    if known is None:
        msg = (
            f"metric {name!r} is no objective of the study, and its name does not tell whether "
            "larger is better; give --direction maximize or --direction minimize"
        )
        raise UsageError(msg)
    return Objective(name, known)


def ranked(
    records: Iterable[EvaluationRecord], objective: Objective
) -> tuple[EvaluationRecord, ...]:
    """Return the records, best first; equal ones by trial and step, and those without a number last.

    Raises:
        UsageError: Not all of them have the metric; those that they have are listed.
    """
    found = sorted(records, key=lambda record: (record.trial, record.step))
    name = objective.name
    without = [record for record in found if name not in record.metrics]
    if without:
        reported = sorted({each for record in without for each in record.metrics})
        msg = (
            f"the evaluation of trial {without[0].trial} reports no metric {name!r}; it reports "
            f"{', '.join(map(repr, reported))}: name one of them with --metric"
        )
        raise UsageError(msg)
    sign = -1.0 if objective.direction == "maximize" else 1.0

    def key(record: EvaluationRecord) -> tuple[bool, float]:
        value = record.metrics[name]
        return (True, 0.0) if math.isnan(value) else (False, sign * value)

    return tuple(sorted(found, key=key))


def _direction_of(metric: str) -> Direction | None:
    words = re.findall(r"[a-z]+[0-9]*", metric.partition("[")[0].lower())
    larger = any(word in _LARGER_IS_BETTER for word in words)
    smaller = any(word in _SMALLER_IS_BETTER for word in words)
    if larger == smaller:
        return None
    return "maximize" if larger else "minimize"
