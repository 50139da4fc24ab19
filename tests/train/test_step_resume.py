"""Calls at steps of a training: at which they come, and that none is twice or left out in a resumed one."""

import keras
import pytest
import tensorflow as tf
from steps import light_settings, regularized
from trainings import Watcher, equal, one_layer, plan, resumed, train, unvalidated, weights

from sweeper import AtStep, EverySteps, TrainingStep
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.train.loop.loop import TrainingLoop


class Blocked(Watcher):
    """Counts the blocks of steps."""

    blocks = 0

    def steps_done(self, position):
        self.blocks += 1
        super().steps_done(position)


def calling(calls, *callbacks, **options):
    def note(step, logs, model):
        assert isinstance(logs["loss"], float)
        assert int(model.optimizer.iterations) == step
        calls.append((step, logs["loss"]))

    return lambda: light(lambda: [make(note) for make in callbacks], **options)


def light(callbacks, **options):
    """A training of which calls ask nothing."""
    given = {"model": one_layer, "data": unvalidated, "step": TrainingStep, "epochs": 2, **options}
    return plan(callbacks=callbacks, **given)


def numbers(calls):
    return [step for step, _ in calls]


def test_calls_come_at_their_steps_and_at_no_others():
    calls = []
    watcher = Blocked()
    train(calling(calls, lambda f: EverySteps(4, f), lambda f: AtStep(9, f))(), watcher)
    assert numbers(calls) == [4, 8, 9, 12]


def test_calls_at_steps_do_not_part_steps_that_nobody_wants(monkeypatch):
    monkeypatch.setattr(TrainingLoop, "_adapt_block", lambda *given: None)

    class Runs:
        def __init__(self, runner):
            self.runner = runner
            self.parts = []

        def __getattr__(self, name):
            return getattr(self.runner, name)

        def run(self, epoch, begin, end):
            self.parts.append((epoch, begin, end))
            return self.runner.run(epoch, begin, end)

    calls = []
    loop = TrainingLoop(calling(calls, lambda f: EverySteps(5, f))(), Watcher())
    loop._block_steps = 100
    runs = loop._train = Runs(loop._train)
    loop.run()
    assert runs.parts == [(0, 0, 5), (0, 5, 7), (1, 0, 3), (1, 3, 7)]
    assert numbers(calls) == [5, 10]


@pytest.mark.parametrize(
    "stops",
    [
        [4, 9],
        pytest.param([3, 4, 5, 9], marks=pytest.mark.whole),
        pytest.param(list(range(1, 14)), id="at every step", marks=pytest.mark.whole),
    ],
    ids=str,
)
def test_no_call_is_made_twice_or_left_out_however_often_it_is_resumed(stops, tmp_path):
    whole = []
    kinds = (lambda f: EverySteps(4, f), lambda f: AtStep(9, f), lambda f: AtStep(7, f))
    train(calling(whole, *kinds)(), Watcher())
    assert numbers(whole) == [4, 7, 8, 9, 12]
    calls = []
    resumed(calling(calls, *kinds), tmp_path, stops)
    assert calls == whole


def test_a_call_stands_beside_callbacks_of_single_batches_and_executions_of_several():
    seen = []

    class Listens(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    def several():
        return TrainingStep(**light_settings(), steps_per_execution=3)

    calls = []
    planned = light(
        lambda: [Listens(), EverySteps(2, lambda step, logs, model: calls.append(step))],
        model=regularized,
        step=several,
        epochs=1,
    )
    train(planned, Watcher())
    assert calls == [2, 4, 6]
    assert seen == [2, 5, 8], "as without the calls"


def test_a_call_can_stop_the_training(tmp_path):
    def stop(step, logs, model):
        model.stop_training = True

    planned = light(lambda: [AtStep(5, stop)])
    watcher = Watcher()
    loop = train(planned, watcher)
    assert loop._position.step == 5
    assert len(loop.history.epoch) == 1


def test_a_call_changes_what_is_trained_from_then_on_and_a_resume_keeps_it(tmp_path):
    """At a step, layers are frozen: by a variable, since the graph is made once."""

    class Freezes(TrainingStep):
        def __init__(self):
            super().__init__()
            self.on = keras.Variable(1.0, trainable=False, name="on")

        def process_gradients(self, gradients, values):
            return [self.on * gradient for gradient in gradients]

    def freeze(step, logs, model):
        model.training_step.on.assign(0.0)

    def make():
        return light(lambda: [AtStep(5, freeze)], step=Freezes)

    watcher = Watcher(tmp_path, lambda position: position.step == 6, block=1)
    whole = weights(train(make(), watcher)._plan.model)
    loaded = load_checkpoint(watcher.kept[0])
    assert loaded.step == 6
    assert equal(whole, weights(train(make(), Watcher(), loaded)._plan.model))
    free = train(light(tuple, step=Freezes), Watcher())
    assert not equal(whole, weights(free._plan.model))


def test_summaries_written_at_steps_are_there_once_for_each_step_after_a_resume(tmp_path):
    def make():
        return light(lambda: [Summaries(logs)])

    logs = tmp_path / "logs"
    whole = train(make(), Watcher()).history.history
    first = written(logs)
    assert [step for step, _ in first] == [3, 6, 9, 12]
    for file in logs.iterdir():
        file.unlink()
    assert resumed(make, tmp_path / "checkpoints", [5]).history.history == whole
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
    found = []
    for file in sorted(directory.glob("events*")):
        for record in tf.compat.v1.train.summary_iterator(str(file)):
            found += [
                (record.step, float(tf.make_ndarray(value.tensor)))
                for value in record.summary.value
            ]
    return sorted(found)


def test_the_model_of_a_trial_is_the_one_that_calls_receive():
    models = []
    planned = light(lambda: [AtStep(1, lambda step, logs, model: models.append(model))])
    train(planned, Watcher())
    assert models == [planned.model]
    assert equal(weights(models[0]), weights(planned.model))
