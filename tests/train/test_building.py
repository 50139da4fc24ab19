"""Building metrics and optimizer from shapes: done where it can be, and no fault hidden."""

import logging

import keras
import numpy as np
import pytest
from trainings import Watcher, plan, small_data, train

from sweeper import TrainingStep
from sweeper.train.loop import runners
from sweeper.train.loop.runners import build_before_tracing

X, Y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)


def compiled(metric="mae", loss="mse"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", loss, metrics=[metric])
    return model


def test_metrics_and_optimizer_have_their_variables_before_any_step():
    model = compiled()
    assert not model.optimizer.built
    build_before_tracing(model, (X, Y))
    assert model.optimizer.built
    assert len(model.optimizer.variables) == 6
    assert model._compile_metrics.built


class OwnLoss(TrainingStep):
    def extra_losses(self):
        return []


class OnlyTheBias(OwnLoss):
    def trainable_variables(self):
        return [v for v in super().trainable_variables() if v.name == "bias"]


class OwnUpdate(OwnLoss):
    def update(self, gradients, variables, values):
        super().update(gradients[:1], variables[:1], values)


class OwnStep(OwnLoss):
    def train_step(self, batch):
        return super().train_step(batch)


@pytest.mark.parametrize(
    ("kind", "slots"), [(OwnLoss, 4), (OnlyTheBias, 0), (OwnUpdate, 0), (OwnStep, 0)]
)
def test_of_a_step_that_does_not_say_what_is_trained_the_optimizer_has_its_slots(kind, slots):
    """Where it may say, they are its trace's to make: others would be in each checkpoint."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    step = kind(optimizer="adam", loss="mse")
    step.bind(model)
    build_before_tracing(model, (X, Y), step)
    optimizer = step.optimizer
    assert len(optimizer.variables) - 2 == slots, "beside the iterations and the rate"
    assert optimizer.built == (slots > 0)


def test_a_step_that_frees_a_layer_in_its_first_trace_trains_it():
    """Slots for what is trained before that would be too few."""

    def frozen():
        model = keras.Sequential([bare(), keras.layers.Dense(1)])
        model.layers[0].trainable = False
        return model

    class Freeing(OwnLoss):
        def outputs(self, inputs, *, training):
            self.model.layers[0].trainable = True
            return super().outputs(inputs, training=training)

    planned = plan(model=frozen, step=lambda: Freeing(optimizer="adam", loss="mse"), epochs=1)
    began = planned.model.layers[0].get_weights()[0]
    train(planned, Watcher())
    assert not np.array_equal(planned.model.layers[0].get_weights()[0], began)


def test_such_a_step_is_traced_once_and_its_training_ends_the_same(tmp_path, monkeypatch):
    traced = []

    class Told(OwnLoss):
        def extra_losses(self):
            traced.append("once more")
            return []

    def ended(directory):
        traced.clear()
        watcher = Watcher(directory)
        unvalidated = small_data(validation=None)
        planned = plan(
            model=bare, data=lambda: unvalidated, step=lambda: Told(optimizer="adam", loss="mse")
        )
        train(planned, watcher)
        assert watcher.digest
        return watcher.digest, len(traced)

    digest, times = ended(tmp_path / "before")
    monkeypatch.setattr(runners, "_build_optimizer_of", lambda step: None)
    assert ended(tmp_path / "by the trace") == (digest, 2), "the control"
    assert times == 1


def bare():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])


def test_a_fault_in_a_metric_of_the_users_is_raised_and_not_swallowed():
    def faulty(_y, _prediction):
        return {}["nothing of this name"]

    with pytest.raises(KeyError, match="nothing of this name"):
        build_before_tracing(compiled(faulty), (X, Y))


def test_what_does_not_fit_is_left_to_the_trace_and_logged(caplog):
    with caplog.at_level(logging.DEBUG, logger="sweeper.train.loop.runners"):
        build_before_tracing(compiled(), (np.ones((4, 7), np.float32), Y))
    assert "built by its trace" in caplog.text
