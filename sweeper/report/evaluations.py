"""The ranking of `sweeper evaluate` as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from sweeper.declared.searching import Objective
from sweeper.records.evaluations import EvaluationRecord
from sweeper.report.formats import objective_first, value_text
from sweeper.report.widths import WholeColumns


def ranking_table(records: Sequence[EvaluationRecord], objective: Objective) -> RenderableType:
    """Return a row per checkpoint, in the order given: rank, trial, metrics and path."""
    names = _metrics(records, objective.name)
    rows = [
        [
            *(str(rank), str(record.trial), str(record.step), str(record.epoch)),
            *(value_text(record.metrics.get(name), 6) for name in names),
        ]
        for rank, record in enumerate(records, 1)
    ]
    paths = [record.path or "-" for record in records]
    headers = ("rank", "trial", "step", "after epoch", *names)
    return WholeColumns(headers, rows, least=5, folded=("checkpoint", paths))


def _metrics(records: Sequence[EvaluationRecord], first: str | None) -> list[str]:
    names = dict.fromkeys((name for record in records for name in record.metrics), 0.0)
    return objective_first(names, first)
