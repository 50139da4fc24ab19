"""Importance of each parameter for a study's objective, by Optuna's evaluators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeper.errors import UsageError
from sweeper.records.results import TrialRecord
from sweeper.search.spaces import to_optuna
from sweeper.search.spec import quieten_optuna
from sweeper.spec.searching import Objective
from sweeper.support.installation import missing_package

Method = Literal["ped-anova", "fanova"]

FEWEST_TRIALS = 10
"""Minimum number of complete trials."""

_AMONG_THE_BEST = 5
_IN_MEMORY = "importance"
_SMALLEST_SHARE, _LARGEST_SHARE = 0.1, 0.5


@dataclass(frozen=True, slots=True)
class Importances:
    """Result of an importance evaluator.

    Attributes:
        shares: Each parameter's share, the largest first; empty if there is no result.
        trials: Number of complete trials with a finite value.
        why_not: The reason for which ``shares`` is empty.
        best_share: With ``"ped-anova"``: the share of trials that count as the best.
    """

    objective: Objective
    method: Method
    shares: tuple[tuple[str, float], ...]
    trials: int
    why_not: str | None = None
    best_share: float | None = None


def parameter_importances(
    trials: Sequence[TrialRecord],
    objective: Objective,
    *,
    method: Method = "ped-anova",
    seed: int = 0,
) -> Importances:
    """Return the importances of parameters for one objective.

    Args:
        trials: The study's trials; only complete ones with a finite value are used.
        objective: One of the study's objectives.
        method: ``"ped-anova"``, which needs no other package and is deterministic; or ``"fanova"``,
            which needs scikit-learn.
        seed: Seed of fANOVA's trees.

    Raises:
        UsageError: No such method, or scikit-learn is not installed.
    """
    if method not in ("ped-anova", "fanova"):
        msg = f"method {method!r}; expected 'ped-anova' or 'fanova'"
        raise UsageError(msg)
    usable = [(t, v) for t in trials if (v := _value(t, objective)) is not None]
    why_not = _why_not([trial for trial, _ in usable])
    if why_not is not None:
        return Importances(objective, method, (), len(usable), why_not)
    share = min(max(_AMONG_THE_BEST / len(usable), _SMALLEST_SHARE), _LARGEST_SHARE)
    found = _evaluate(usable, objective, _evaluator(method, seed, share))
    whole = sum(found.values())
    if not (math.isfinite(whole) and whole > 0):
        said = "no parameter has a visible effect in these trials"
        return Importances(objective, method, (), len(usable), said)
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    shares = tuple((name, value / whole) for name, value in ranked)
    best = share if method == "ped-anova" else None
    return Importances(objective, method, shares, len(usable), best_share=best)


def _value(trial: TrialRecord, objective: Objective) -> float | None:
    if trial.state != "complete":
        return None
    value = trial.value if trial.values is None else trial.values.get(objective.name)
    return value if value is not None and math.isfinite(value) else None


def _why_not(trials: Sequence[TrialRecord]) -> str | None:
    if len(trials) < FEWEST_TRIALS:
        return (
            f"{len(trials)} complete trials are too few for importances of parameters; "
            f"{FEWEST_TRIALS} are needed"
        )
    names = dict.fromkeys(name for trial in trials for name in trial.distributions)
    if len(names) < 2:
        alone = f"there is only one parameter ({next(iter(names))})" if names else "there are none"
        return f"{alone}, so there is nothing to compare"
    return None


def _evaluator(method: Method, seed: int, share: float) -> Any:
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    if method == "ped-anova":
        return PedAnovaImportanceEvaluator(target_quantile=share)
    try:
        return FanovaImportanceEvaluator(seed=seed)
    except ImportError as error:
        msg = f"method 'fanova': {missing_package(error) or error}; or use method='ped-anova'"
        raise UsageError(msg) from error


def _evaluate(
    usable: Sequence[tuple[TrialRecord, float]], objective: Objective, evaluator: Any
) -> dict[str, float]:
    import warnings

    import optuna
    from optuna.trial import create_trial

    quieten_optuna()
    storage = optuna.storages.InMemoryStorage()
    direction = optuna.study.StudyDirection[objective.direction.upper()]
    storage.create_new_study([direction], study_name=_IN_MEMORY)
    study = optuna.study.Study(study_name=_IN_MEMORY, storage=storage)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return {name: float(value) for name, value in evaluator.evaluate(study).items()}
