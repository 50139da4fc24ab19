"""Importance of each parameter for a study's objective, by Optuna's PED-ANOVA, which is deterministic."""

import math
from collections.abc import Sequence

from sweeper.declarations.searching import Objective
from sweeper.records.results import TrialRecord
from sweeper.search.spaces import to_optuna
from sweeper.search.spec import quieten_optuna

FEWEST_TRIALS = 10
"""Minimum number of complete trials."""

_AMONG_THE_BEST = 5
"""Number of trials that count as the best, within the two shares below."""
_SMALLEST_SHARE = 0.1
_LARGEST_SHARE = 0.5


def parameter_importances(
    trials: Sequence[TrialRecord], objective: Objective
) -> tuple[tuple[str, float], ...]:
    """Return each parameter's share in being among the best complete trials, the largest first.

    The sum of the shares is 1. There are none for fewer than 10 trials with a finite value, fewer than two
    parameters, or if no parameter has a visible effect.
    """
    import warnings

    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.trial import create_trial

    usable = [(trial, value) for trial in trials if (value := _value(trial, objective)) is not None]
    names = {name for trial, _ in usable for name in trial.distributions}
    if len(usable) < FEWEST_TRIALS or len(names) < 2:
        return ()
    quieten_optuna()
    study = optuna.create_study(direction=objective.direction)
    study.add_trials(
        [
            create_trial(
                value=value,
                params=dict(trial.params),
                distributions={n: to_optuna(d) for n, d in trial.distributions.items()},
            )
            for trial, value in usable
        ]
    )
    share = min(max(_AMONG_THE_BEST / len(usable), _SMALLEST_SHARE), _LARGEST_SHARE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        importances = PedAnovaImportanceEvaluator(target_quantile=share).evaluate(study)
    whole = sum(importances.values())
    if not (math.isfinite(whole) and whole > 0):
        return ()
    ranked = sorted(importances.items(), key=lambda item: (-item[1], item[0]))
    return tuple((name, float(value) / whole) for name, value in ranked)


def _value(trial: TrialRecord, objective: Objective) -> float | None:
    if trial.state != "complete":
        return None
    value = trial.value if trial.values is None else trial.values.get(objective.name)
    return value if value is not None and math.isfinite(value) else None
