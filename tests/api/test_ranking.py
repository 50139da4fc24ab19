"""Evaluations are ranked by a metric whose direction is known, or not at all."""

import math
from datetime import UTC, datetime

import pytest

from sweeper.declarations.searching import Objective
from sweeper.errors import UsageError
from sweeper.records.evaluations import EvaluationRecord, ranked, ranking_objective

OWN = (Objective("val_reward", "maximize"), Objective("val_loss", "minimize"))


def record(trial, step, **metrics):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return EvaluationRecord(trial, step, 1, "d", "test", "e", metrics, moment)


@pytest.mark.parametrize(
    ("metric", "direction", "expected"),
    [
        (None, None, ("reward", "maximize")),
        ("loss", None, ("loss", "minimize")),
        ("val_reward", None, ("reward", "maximize")),
        (None, "minimize", ("reward", "minimize")),
        ("accuracy", None, ("accuracy", "maximize")),
        ("f1_score[2]", None, ("f1_score[2]", "maximize")),
        ("mean_absolute_error", None, ("mean_absolute_error", "minimize")),
        (
            "sparse_categorical_crossentropy",
            *(None, ("sparse_categorical_crossentropy", "minimize")),
        ),
        ("gain", "maximize", ("gain", "maximize")),
    ],
)
def test_the_direction_is_the_objectives_or_known_by_the_name(metric, direction, expected):
    assert ranking_objective(OWN, metric, direction) == Objective(*expected)


def test_the_best_comes_first_equal_ones_by_trial_and_step_and_nan_last():
    records = [
        record(1, 5, loss=0.5),
        record(0, 9, loss=math.nan),
        record(0, 7, loss=0.5),
        record(0, 5, loss=0.5),
        record(2, 1, loss=math.inf),
        record(2, 2, loss=0.1),
    ]
    down = ranked(records, Objective("loss", "minimize"))
    assert [(r.trial, r.step) for r in down] == [(2, 2), (0, 5), (0, 7), (1, 5), (2, 1), (0, 9)]
    up = ranked(records, Objective("loss", "maximize"))
    assert [(r.trial, r.step) for r in up] == [(2, 1), (0, 5), (0, 7), (1, 5), (2, 2), (0, 9)]


def test_a_direction_that_is_not_known_and_a_metric_that_one_does_not_have_are_refused():
    with pytest.raises(UsageError, match="'gain' is no objective of the study, and its name does"):
        ranking_objective(OWN, "gain", None)
    with pytest.raises(UsageError, match="direction 'up'; expected 'maximize' or 'minimize'"):
        ranking_objective(OWN, None, "up")
    records = [record(0, 1, auc=1.0, loss=1.0), record(3, 1, loss=2.0)]
    message = (
        "the evaluation of trial 3 reports no metric 'auc'; it reports 'loss': name one of them"
    )
    with pytest.raises(UsageError, match=message):
        ranked(records, Objective("auc", "maximize"))
