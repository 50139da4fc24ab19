"""Evaluations are ranked by a metric whose direction is known, or not at all."""

import math
from datetime import UTC, datetime

import pytest

from sweeper.errors import UsageError
from sweeper.records.evaluations import EvaluationRecord, ranked, ranking_objective
from sweeper.spec.searching import Objective

OWN = (Objective("val_reward", "maximize"), Objective("val_loss", "minimize"))


def record(trial, step, **metrics):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return EvaluationRecord(trial, step, 1, "d", "test", "e", metrics, now)


@pytest.mark.parametrize(
    ("metric", "direction", "expected"),
    [
        (None, None, Objective("reward", "maximize")),
        ("loss", None, Objective("loss", "minimize")),
        ("val_reward", None, Objective("reward", "maximize")),
        (None, "minimize", Objective("reward", "minimize")),
        ("accuracy", None, Objective("accuracy", "maximize")),
        ("f1_score[2]", None, Objective("f1_score[2]", "maximize")),
        ("mean_absolute_error", None, Objective("mean_absolute_error", "minimize")),
        ("sparse_categorical_crossentropy", None, None),
        ("gain", None, None),
        ("gain", "maximize", Objective("gain", "maximize")),
    ],
)
def test_the_direction_is_the_objectives_or_known_by_the_name(metric, direction, expected):
    if expected is None and metric == "gain":
        with pytest.raises(
            UsageError, match="'gain' is no objective of the study, and its name does not tell"
        ):
            ranking_objective(OWN, metric, direction)
        return
    found = ranking_objective(OWN, metric, direction)
    assert found == (expected or Objective("sparse_categorical_crossentropy", "minimize"))


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


def refused(call, *arguments):
    with pytest.raises(UsageError) as raised:
        call(*arguments)
    return str(raised.value)


def test_a_wrong_direction_and_a_metric_that_one_does_not_have_are_refused_with_the_right_ones():
    said = "direction 'up'; expected 'maximize' or 'minimize'"
    assert refused(ranking_objective, OWN, None, "up") == said
    records = [record(0, 1, auc=1.0, loss=1.0), record(3, 1, loss=2.0)]
    assert refused(ranked, records, Objective("auc", "maximize")) == (
        "the evaluation of trial 3 reports no metric 'auc'; it reports 'loss': name one of them "
        "with --metric"
    )
