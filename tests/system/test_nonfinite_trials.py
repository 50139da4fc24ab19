"""A trial whose loss is NaN or infinite: it trains on, and fails only where that is its value."""

import math
from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import sweep_inline

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

STUDY = replace(
    SHORT,
    name="exploding",
    rate='trial.suggest_categorical("rate", [1e30, 0.01, 0.02])',
    arguments="""objective="loss", epochs=2, trials=3, threads=1, audit="off",
    sampler="grid", grid={"rate": [1e30, 0.01, 0.02]}""",
)


def test_a_value_that_is_not_finite_fails_its_trial_with_the_reason(tmp_path):
    swept = sweep_inline(STUDY, tmp_path)
    failed = swept.trials[0]
    assert [trial.state for trial in swept.trials] == ["failed", "complete", "complete"]
    assert "NonFiniteError: the objective 'loss' is" in (failed.error or "")
    assert "at the end of the last epoch, 2" in (failed.error or "")
    assert [math.isfinite(epoch.metrics["loss"]) for epoch in failed.epochs] == [False, False]
    notices = [text for text in swept.notices if "training continues, as in model.fit" in text]
    assert len(notices) == 1


@pytest.mark.whole
def test_a_loss_that_is_not_the_value_fails_nothing(tmp_path):
    study = replace(
        STUDY,
        name="beside",
        metrics='keras.metrics.MeanMetricWrapper(lambda y, p: keras.ops.zeros_like(p), name="nothing")',
        arguments=STUDY.arguments.replace(
            'objective="loss"', 'objective="nothing", direction="minimize"'
        ),
    )
    trials = sweep_inline(study, tmp_path).trials
    assert [(trial.state, trial.error) for trial in trials] == [("complete", None)] * 3


@pytest.mark.whole
def test_at_a_rung_it_is_left_behind(tmp_path):
    study = replace(
        STUDY,
        name="rungs",
        head="from sweeper import Halving",
        arguments=STUDY.arguments + ", budget=Halving(min_epochs=1, factor=2), concurrency=3",
    )
    trials = sweep_inline(study, tmp_path).trials
    assert len(trials[0].epochs) == 1
    assert [trial.state for trial in trials] == ["pruned", "complete", "complete"]
