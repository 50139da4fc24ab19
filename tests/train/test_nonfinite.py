"""A loss that is NaN or infinite after an epoch: training goes on, as in ``fit``, and it is reported once."""

import math
from dataclasses import replace

import keras
import numpy as np
import pytest
from trainings import Watcher, digits, one_layer, plan, train, unvalidated

import sweeper
from sweeper.errors import DefinitionError, NonFiniteError
from sweeper.spec.searching import value_at
from sweeper.train.loop.logs import check_value
from sweeper.train.loop.loop import TrainingLoop


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


def noticed(model, **options):
    notices = []
    changes = {name: options.pop(name) for name in ("nonfinite",) if name in options}
    planned = plan(model=model, data=unvalidated, **options)
    loop = TrainingLoop(replace(planned, **changes), Watcher(), notices.append)
    loop.run()
    return loop, notices


def test_fit_goes_on_with_a_loss_that_is_infinite_and_says_so_once(tmp_path):
    notices = []
    x, y = digits()
    history = sweeper.fit(
        exploding(), (x, y), epochs=3, checkpoints=tmp_path / "c", notice=notices.append
    )
    assert [math.isfinite(loss) for loss in history.history["loss"]] == [False] * 3
    (notice,) = notices
    assert "at the end of epoch 1 of 3; training continues, as in model.fit" in notice
    assert "TerminateOnNaN" in notice
    assert "Study" not in notice


def test_terminate_on_nan_ends_it_and_the_history_has_the_epoch(tmp_path):
    x, y = digits()
    history = sweeper.fit(
        exploding(),
        (x, y),
        epochs=3,
        checkpoints=tmp_path / "c",
        callbacks=[keras.callbacks.TerminateOnNaN()],
        notice=lambda _message: None,
    )
    assert history.epoch == [0]


def test_a_resumed_training_does_not_say_it_again(tmp_path):
    x, y = digits()
    for epochs, count in ((2, 1), (4, 0)):
        notices = []
        history = sweeper.fit(
            exploding(), (x, y), epochs=epochs, checkpoints=tmp_path / "c", notice=notices.append
        )
        assert len(history.epoch) == epochs
        assert len(notices) == count


def test_an_objective_that_recovers_gives_the_trial_its_value():
    loop, notices = noticed(showing(math.nan, math.inf, 0.5, 0.25), objective="shown", epochs=3)
    shown = [record.metrics["shown"] for record in loop.epochs]
    assert math.isnan(shown[0])
    assert shown[1:] == [math.inf, 0.5]
    (notice,) = notices
    assert "shown is nan at the end of epoch 1 of 3" in notice
    assert 'Study(nonfinite="fail") fails the trial' in notice


def test_a_metric_that_decides_nothing_is_not_reported():
    assert noticed(showing(math.nan, math.nan), objective="loss", epochs=1)[1] == []


def test_where_the_study_asks_for_it_the_first_such_epoch_ends_the_trial():
    with pytest.raises(NonFiniteError, match=r"shown is inf at the end of epoch 2 of 3.*nonfinite"):
        noticed(showing(0.5, math.inf, 0.5), objective="shown", epochs=3, nonfinite="fail")


def test_a_loss_scale_that_is_too_large_at_first_recovers():
    def scaled():
        model = one_layer()
        inner = keras.optimizers.SGD(0.01)
        scale = keras.optimizers.LossScaleOptimizer(inner, initial_scale=float(2**127))
        model.compile(scale, "mse")
        return model

    loop = train(plan(model=scaled, data=unvalidated, epochs=3), Watcher())
    assert all(np.isfinite(w).all() for w in loop._plan.model.get_weights())


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_none(value):
    with pytest.raises(NonFiniteError, match=r"'loss' is .* at the end of the last epoch, 3"):
        check_value("loss", value, "last", 3)
    with pytest.raises(NonFiniteError, match="in all 3 epochs"):
        check_value("loss", value, "best", 3)
    check_value("loss", 0.5, "last", 3)


def test_a_study_takes_two_ways_only():
    def none(_trial):
        return None

    with pytest.raises(DefinitionError, match=r"nonfinite='stop'; .*'continue'.*'fail'"):
        sweeper.Study(name="x", model=none, data=none, epochs=1, trials=1, nonfinite="stop")
