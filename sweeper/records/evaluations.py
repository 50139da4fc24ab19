"""Results of `sweeper evaluate`: one frozen record for each checkpoint and data set, and their ranking.

Records are read from the database and never written back. Metrics have the names of an epoch's
validation metrics without ``val_``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sweeper.declarations.searching import Direction, Objective, cost_sign, direction_of
from sweeper.errors import UsageError
from sweeper.records.printing import JsonRecord, counted, values_shown


@dataclass(frozen=True, slots=True)
class EvaluationRecord(JsonRecord):
    """Metrics of one checkpoint of a trial on one data set.

    Attributes:
        trial: The trial's number.
        step: Finished optimizer steps at the checkpoint.
        epoch: Finished epochs at the checkpoint.
        digest: The checkpoint's digest, see `CheckpointRecord.digest`.
        data: Name of the data: ``"test"`` or ``"validation"`` for the study's own data, otherwise the
            argument of ``--data``.
        data_digest: XXH3-128 (hex) of the content of arrays, or of the shapes and dtypes of batches.
        metrics: Metrics of the test step, by name.
        evaluated_at: Time of the evaluation, by the database's clock.
        path: The checkpoint's directory; None if it is no longer kept.

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


def ranking_objective(
    objectives: Sequence[Objective], metric: str | None, direction: str | None
) -> Objective:
    """Return the metric, with or without ``val_``, and direction of a ranking; None for the study's own."""
    if direction not in (None, "maximize", "minimize"):
        raise UsageError(f"direction {direction!r}; expected 'maximize' or 'minimize'")
    name = (objectives[0].name if metric is None else metric).removeprefix("val_")
    requested: Direction | None = None
    if direction == "maximize":
        requested = "maximize"
    elif direction == "minimize":
        requested = "minimize"
    for objective in objectives:
        if objective.name.removeprefix("val_") == name:
            return Objective(name, requested or objective.direction)
    resolved = requested or direction_of(name)
    if resolved is None:
        raise UsageError(
            f"metric {name!r} is no objective of the study, and its name does not tell whether "
            "larger is better; give --direction maximize or --direction minimize"
        )
    return Objective(name, resolved)


def ranked(
    records: Iterable[EvaluationRecord], objective: Objective
) -> tuple[EvaluationRecord, ...]:
    """Return the records, the best first; equal ones by trial and step, and those with NaN last."""
    ordered = sorted(records, key=lambda record: (record.trial, record.step))
    name = objective.name
    without = [record for record in ordered if name not in record.metrics]
    if without:
        reported = sorted({other for record in without for other in record.metrics})
        raise UsageError(
            f"the evaluation of trial {without[0].trial} reports no metric {name!r}; it reports "
            f"{', '.join(map(repr, reported))}: name one of them with --metric"
        )
    sign = cost_sign(objective.direction)

    def key(record: EvaluationRecord) -> tuple[bool, float]:
        value = record.metrics[name]
        return (True, 0.0) if math.isnan(value) else (False, sign * value)

    return tuple(sorted(ordered, key=key))
