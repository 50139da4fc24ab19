"""A loss that is NaN or infinite after an epoch: training goes on, as in ``fit``, and it is reported once."""

import math
from dataclasses import replace

import keras
import pytest
from fitted import fitted
from small_models import Runner
from trainings import Watcher, one_layer, plan, train, unvalidated

import sweeper
from sweeper.errors import DefinitionError, NonFiniteError
from sweeper.spec.searching import value_at


class Shown(keras.metrics.Metric):
    """A metric whose value of each epoch is given; an epoch begins by resetting it."""

    def __init__(self, values):
        super().__init__(name="shown")
        self.values = values
        self.epoch = self.add_weight(shape=(), initializer="zeros", dtype="int32")
        self.epoch.assign(-1)

    def update_state(self, *_arguments, **_options):
        """Nothing is counted."""

    def result(self):
        return keras.ops.take(
            keras.ops.convert_to_tensor(self.values), keras.ops.maximum(self.epoch, 0)
        )

    def reset_state(self):
        self.epoch.assign(self.epoch + 1)


def showing(*values):
    def build():
        model = one_layer()
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[Shown(list(values))])
        return model

    return build


def exploding():
    model = one_layer()
    model.compile(keras.optimizers.SGD(1e30), "mse")
    return model


def reported(model, epochs=3, nonfinite="continue", **options):
    """Train; the epochs' metrics."""
    watcher = Watcher()
    planned = plan(model=model, data=unvalidated, epochs=epochs, **options)
    train(replace(planned, nonfinite=nonfinite), watcher)
    return [metrics for _, metrics in watcher.epochs]


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

    history = fitted(exploding, unvalidated, callbacks=callbacks, notice=lambda _message: None)
    assert history.epoch == [0]


def test_an_objective_that_recovers_gives_the_trial_its_value(caplog):
    recovering = showing(math.nan, math.inf, 0.5, 0.25)
    shown = [metrics["shown"] for metrics in reported(recovering, objective="shown")]
    assert math.isnan(shown[0])
    assert shown[1:] == [math.inf, 0.5]
    (notice,) = caplog.messages
    assert "shown is nan at the end of epoch 1 of 3" in notice
    assert 'Study(nonfinite="fail") fails the trial' in notice


def test_a_metric_that_decides_nothing_is_not_reported(caplog):
    reported(showing(math.nan, math.nan), objective="loss", epochs=1)
    assert caplog.messages == []


def test_where_the_study_asks_for_it_the_first_such_epoch_ends_the_trial():
    with pytest.raises(NonFiniteError, match=r"shown is inf at the end of epoch 2 of 3.*nonfinite"):
        reported(showing(0.5, math.inf, 0.5), objective="shown", nonfinite="fail")


@pytest.mark.parametrize(
    ("at", "said"),
    [("last", "at the end of the last epoch, 3"), ("best", "in all 3 epochs")],
)
def test_a_value_that_is_not_finite_fails_its_trial(at, said, tmp_path):
    ran = Runner(tmp_path)(
        lambda _trial: exploding(),
        data=lambda _trial: unvalidated(),
        objective="loss",
        at=at,
        epochs=3,
    )
    (trial,) = ran.results.trials
    assert trial.state == "failed"
    assert "NonFiniteError: the objective 'loss' is " in trial.error
    assert said in trial.error


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
    found = value_at(values, at, "minimize")
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_study_takes_two_ways_only():
    def none(_trial):
        return None

    with pytest.raises(DefinitionError, match=r"nonfinite='stop'; .*'continue'.*'fail'"):
        sweeper.Study(name="x", model=none, data=none, epochs=1, trials=1, nonfinite="stop")
