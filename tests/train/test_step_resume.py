"""Calls at steps of a training: at which they come, and that none is twice or left out in a resumed one."""

import keras
import pytest
import tensorflow as tf
from fitted import fitted, fitted_in_parts
from steps import light_settings, regularized
from trainings import equal, one_layer, unvalidated, weights

from sweeper import AtStep, EverySteps, TrainingStep


def light(callbacks, model=one_layer, **options):
    """A training of which calls ask nothing."""
    return fitted(model, unvalidated, callbacks=callbacks, **options)


@pytest.mark.parametrize(
    "stops",
    [
        [4, 9],
        pytest.param([3, 4, 5, 9], marks=pytest.mark.whole),
        pytest.param(list(range(1, 14)), id="at every step", marks=pytest.mark.whole),
    ],
    ids=str,
)
def test_calls_come_at_their_steps_and_at_no_others(stops, tmp_path):
    """However often the training is resumed."""
    calls = []

    def note(step, logs, model):
        assert int(model.optimizer.iterations) == step
        calls.append((step, logs["loss"]))

    def callbacks():
        return [EverySteps(4, note), AtStep(9, note), AtStep(7, note)]

    light(callbacks)
    whole = calls.copy()
    assert [step for step, _ in whole] == [4, 7, 8, 9, 12]
    assert all(isinstance(loss, float) for _, loss in whole)
    calls.clear()
    fitted_in_parts(stops, tmp_path, one_layer, unvalidated, callbacks=callbacks)
    assert calls == whole


def test_a_call_stands_beside_callbacks_of_single_batches_and_executions_of_several():
    batches = []
    calls = []

    class Listens(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            batches.append(batch)

    light(
        lambda: [Listens(), EverySteps(2, lambda step, logs, model: calls.append(step))],
        regularized,
        step=lambda: TrainingStep(**light_settings(), steps_per_execution=3),
        epochs=1,
    )
    assert calls == [2, 4, 6]
    assert batches == [2, 5, 8], "as without the calls"


def test_a_call_can_stop_the_training():
    def stop(step, logs, model):
        model.stop_training = True

    ended = light(lambda: [AtStep(5, stop)])
    assert int(ended.model.optimizer.iterations) == 5
    assert ended.epoch == [0]


def test_a_call_changes_what_is_trained_from_then_on_and_a_resume_keeps_it(tmp_path):
    """At a step, layers are frozen: by a variable, since the graph is made once."""

    class Freezes(TrainingStep):
        def __init__(self):
            super().__init__()
            self.on = keras.Variable(1.0, trainable=False, name="on")

        def process_gradients(self, gradients, values):
            return [self.on * gradient for gradient in gradients]

    def callbacks():
        return [AtStep(5, lambda step, logs, model: model.training_step.on.assign(0.0))]

    whole = weights(light(callbacks, step=Freezes).model)
    ended = fitted_in_parts(
        [6], tmp_path, one_layer, unvalidated, callbacks=callbacks, step=Freezes
    )
    assert equal(whole, weights(ended.model))
    assert not equal(whole, weights(light(tuple, step=Freezes).model))


def test_summaries_written_at_steps_are_there_once_for_each_step_after_a_resume(tmp_path):
    def callbacks():
        return [Summaries(logs)]

    logs = tmp_path / "logs"
    whole = light(callbacks).history
    first = written(logs)
    assert [step for step, _ in first] == [3, 6, 9, 12]
    for file in logs.iterdir():
        file.unlink()
    ended = fitted_in_parts([5], tmp_path / "c", one_layer, unvalidated, callbacks=callbacks)
    assert ended.history == whole
    assert written(logs) == first


class Summaries(EverySteps):
    """Writes the loss every third step; ``tf.summary.scalar`` would need TensorBoard here."""

    def __init__(self, directory):
        super().__init__(3, self.write)
        self.directory = str(directory)
        self.writer = None

    def on_train_begin(self, logs=None):
        self.writer = tf.summary.create_file_writer(self.directory)

    def write(self, step, logs, model):
        with self.writer.as_default(step=step):
            tf.summary.write("loss", logs["loss"])
        self.writer.flush()


def written(directory):
    scalars = []
    for file in sorted(directory.glob("events*")):
        for record in tf.compat.v1.train.summary_iterator(str(file)):
            scalars += [
                (record.step, float(tf.make_ndarray(value.tensor)))
                for value in record.summary.value
            ]
    return sorted(scalars)
