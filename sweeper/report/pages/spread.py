"""How far a study's answer can be relied on: spreads, each with a sentence that says of what."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev

from sweeper.declared.searching import Objective
from sweeper.report.figures.choosing import objective_value, ordered
from sweeper.results import StudyResults, TrialRecord

_LAST_EPOCHS = 5
_FEWEST_OF_THE_BEST = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Values that belong together.

    Attributes:
        of: What they are of, in words.
        count: How many; the others are None where it is 0.
        deviation: Their standard deviation; None of fewer than two.
    """

    of: str
    count: int
    least: float | None = None
    middle: float | None = None
    greatest: float | None = None
    deviation: float | None = None


def spreads(results: StudyResults, objective: Objective) -> tuple[Spread, ...]:
    """Return the spreads of one objective: over the best trials, all of them, seeds, and the last epochs."""
    complete = [
        (trial, value)
        for trial in results.trials
        if trial.state == "complete"
        and (value := objective_value(trial, objective.name)) is not None
        and math.isfinite(value)
    ]
    values = ordered([value for _, value in complete], objective.direction)
    top = values[: max(_FEWEST_OF_THE_BEST, math.ceil(len(values) / 10))]
    found = [
        _spread(f"the best {len(top)} of {len(values)} complete trials (other parameters)", top),
        _spread(f"all {len(values)} complete trials", values),
    ]
    if not results.status.objectives and results.status.best is not None:
        best = results.best
        found.append(_last_epochs(best, objective))
        found.append(_of_seeds(best, complete))
    return tuple(found)


def _last_epochs(best: TrialRecord, objective: Objective) -> Spread:
    known = [e.metrics[objective.name] for e in best.epochs if objective.name in e.metrics]
    last = [value for value in known[-_LAST_EPOCHS:] if math.isfinite(value)]
    return _spread(f"the last {len(last)} epochs of the best trial, {best.number}", last)


def _of_seeds(best: TrialRecord, complete: Sequence[tuple[TrialRecord, float]]) -> Spread:
    """Trials with the best one's parameters: they differ in their seeds alone."""
    by_params: defaultdict[str, list[float]] = defaultdict(list)
    for trial, value in complete:
        by_params[_params_key(trial)].append(value)
    same = by_params[_params_key(best)]
    if len(same) < 2:
        return Spread("seeds alone: no other trial has the best one's parameters", 0)
    return _spread(f"seeds alone: the {len(same)} trials with the best one's parameters", same)


def _params_key(trial: TrialRecord) -> str:
    return json.dumps(dict(trial.params), sort_keys=True)


def _spread(of: str, values: Sequence[float]) -> Spread:
    if not values:
        return Spread(of, 0)
    deviation = stdev(values) if len(values) > 1 else None
    return Spread(of, len(values), min(values), median(values), max(values), deviation)
