"""A loss that is NaN or infinite after an epoch: training goes on, as in ``fit``, and it is reported once."""

import math
from dataclasses import replace

import keras
import pytest
from fitted import fitted
from small_models import Runner
from trainings import Watcher, one_layer, plan, train, unvalidated

import sweeper
from sweeper.declarations.searching import value_at
from sweeper.errors import DefinitionError, NonFiniteError


class Shows(keras.callbacks.Callback):
    """Reports a value for each epoch."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["shown"] = self.values[epoch]


def eager(rate=0.01):
    model = one_layer()
    model.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=True)
    return model


def exploding(_trial=None):
    return eager(1e30)


def reported(*values, nonfinite="continue", objective="shown"):
    """Train for an epoch of each value; what is stored of them."""
    watcher = Watcher()
    planned = plan(
        model=eager,
        data=unvalidated,
        callbacks=lambda: [Shows(values)],
        epochs=len(values),
        objective=objective,
    )
    train(replace(planned, nonfinite=nonfinite), watcher)
    return [metrics["shown"] for _, metrics in watcher.epochs]


def test_fit_goes_on_with_a_loss_that_is_infinite_and_says_so_once_also_when_resumed(tmp_path):
    notices = []
    history = fitted(exploding, unvalidated, epochs=3, checkpoints=tmp_path, notice=notices.append)
    assert [math.isfinite(loss) for loss in history.history["loss"]] == [False] * 3
    (notice,) = notices
    assert "at the end of epoch 1 of 3; training continues, as in model.fit" in notice
    assert "TerminateOnNaN" in notice
    assert "Study" not in notice
    more = fitted(exploding, unvalidated, epochs=4, checkpoints=tmp_path, notice=notices.append)
    assert len(more.epoch) == 4
    assert notices == [notice]


def test_terminate_on_nan_ends_it_and_the_history_has_the_epoch():
    def callbacks():
        return [keras.callbacks.TerminateOnNaN()]

    notices = []
    history = fitted(exploding, unvalidated, callbacks=callbacks, notice=notices.append)
    assert history.epoch == [0]
    assert [notice.partition("epoch 1 of")[2] for notice in notices] == [" 2, where training ends"]


def test_a_warning_names_the_line_that_calls_fit():
    with pytest.warns(UserWarning, match="where training ends") as warned:
        fitted(exploding, unvalidated, epochs=1)
    assert {warning.filename for warning in warned} == {fitted.__code__.co_filename}


def test_an_objective_that_recovers_gives_the_trial_its_value(caplog):
    values = reported(math.nan, math.inf, 0.5)
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, 0.5]
    (notice,) = caplog.messages
    assert "shown is nan at the end of epoch 1 of 3" in notice
    assert 'Study(nonfinite="fail") fails the trial' in notice


def test_a_metric_that_decides_nothing_is_not_reported(caplog):
    reported(math.nan, objective="loss")
    assert caplog.messages == []


def test_where_the_study_asks_for_it_the_first_such_epoch_ends_the_trial():
    with pytest.raises(NonFiniteError, match=r"shown is inf at the end of epoch 2 of 3.*nonfinite"):
        reported(0.5, math.inf, 0.5, nonfinite="fail")


@pytest.mark.parametrize(
    ("at", "message"),
    [("last", "at the end of the last epoch, 3"), ("best", "in all 3 epochs")],
)
def test_a_value_that_is_not_finite_fails_its_trial(at, message, tmp_path):
    options = {"data": lambda _trial: unvalidated(), "objective": "loss", "epochs": 3}
    (trial,) = Runner(tmp_path)(exploding, at=at, **options).results.trials
    assert trial.state == "failed"
    assert "NonFiniteError: the objective 'loss' is " in trial.error
    assert message in trial.error


@pytest.mark.parametrize(
    ("at", "values", "value"),
    [
        ("last", [0.5, math.nan], math.nan),
        ("best", [0.5, math.nan], 0.5),
        ("best", [math.nan, 0.5, 0.75], 0.5),
        ("best", [-math.inf, 0.5], 0.5),
        ("best", [math.nan], math.nan),
    ],
)
def test_the_best_epoch_is_one_whose_objective_is_finite(at, values, value):
    result = value_at(values, at, "minimize")
    assert result == value or (math.isnan(result) and math.isnan(value))


def test_a_study_takes_two_ways_only():
    def none(_trial):
        return None

    with pytest.raises(DefinitionError, match=r"nonfinite='stop'; .*'continue'.*'fail'"):
        sweeper.Study(name="x", model=none, data=none, epochs=1, trials=1, nonfinite="stop")
