"""What is built before a step is traced, and where its arrays lie: neither changes what is trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import fitted
from trainings import small_data, unvalidated

from sweeper import TrainingStep
from sweeper.train.loop.runners import build_before_tracing, gathering


def bare():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])


def compiled(metric="mae"):
    model = bare()
    model.compile("adam", "mse", metrics=[metric])
    return model


def test_metrics_and_optimizer_have_their_variables_before_any_step():
    model = compiled()
    assert not model.optimizer.built
    build_before_tracing(model, (np.ones((4, 8), np.float32), np.ones((4, 1), np.float32)))
    assert len(model.optimizer.variables) == 6
    assert model._compile_metrics.built


class OwnLoss(TrainingStep):
    """Counts how often it is traced."""

    def __init__(self):
        super().__init__(optimizer="adam", loss="mse")
        self.traced = []

    def extra_losses(self):
        self.traced.append("once more")
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
    ("kind", "slots", "traces"),
    [(OwnLoss, 4, 1), (OnlyTheBias, 2, 2), (OwnUpdate, 2, 2), (OwnStep, 4, 2)],
)
def test_of_a_step_that_does_not_say_what_is_trained_the_optimizer_has_its_slots(
    kind, slots, traces
):
    """Where it may say, they are its trace's to make: others would be in each checkpoint."""
    step = fitted(bare, unvalidated, step=kind, epochs=1).model.training_step
    assert len(step.optimizer.variables) - 2 == slots, "beside the iterations and the rate"
    assert len(step.traced) == traces


def test_a_step_that_frees_a_layer_in_its_first_trace_trains_it():
    """Slots for what is trained before that would be too few."""

    class Freeing(OwnLoss):
        def outputs(self, inputs, *, training):
            self.model.layers[0].trainable = True
            return super().outputs(inputs, training=training)

    frozen = keras.Sequential([bare(), keras.layers.Dense(1)])
    frozen.layers[0].trainable = False
    began = frozen.layers[0].get_weights()[0]
    fitted(lambda: frozen, unvalidated, step=Freeing, epochs=1)
    assert not np.array_equal(frozen.layers[0].get_weights()[0], began)


def test_a_fault_in_a_metric_of_the_users_is_raised_and_not_swallowed():
    def faulty(_y, _prediction):
        return {}["nothing of this name"]

    with pytest.raises(KeyError, match="nothing of this name"):
        fitted(lambda: compiled(faulty), unvalidated)


def test_what_needs_a_whole_batch_is_built_by_the_trace():
    """Shapes are those of a few samples."""

    def whole(y, predicted):
        y, predicted = (
            tf.reshape(tf.cast(values, "float32"), [20, 1]) for values in (y, predicted)
        )
        return tf.square(y - predicted)

    def model():
        built = bare()
        built.compile("adam", whole)
        return built

    assert fitted(model, lambda: small_data(batch_size=20, validation=None)).epoch == [0, 1]


# Arrays

DATA = (np.arange(30.0).reshape(10, 3), {"y": np.arange(10), "weights": None})


def test_batches_are_gathered_in_the_hosts_memory():
    """A gather that TensorFlow placed on the GPU would copy the whole array there at each step."""
    gather = gathering(DATA)
    spec = [tf.TensorSpec((None,), tf.int64)]
    graph = tf.function(gather, input_signature=spec).get_concrete_function().graph
    gathers = [op.device for op in graph.get_operations() if op.type.startswith("Gather")]
    assert len(gathers) == 2
    assert all(device.endswith("CPU:0") for device in gathers)
    x, more = gather(tf.constant([7, 0, 7], tf.int64))
    assert np.array_equal(x, DATA[0][[7, 0, 7]])
    assert np.array_equal(more["y"], [7, 0, 7])
    assert more["weights"] is None
