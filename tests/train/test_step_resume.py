"""A training with a step of parts goes on exactly after any step, and so do calls at its steps."""

import shutil
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from steps import GanStep, GroupsStep, default, maker, settings, uncompiled
from trainings import Watcher, equal, one_layer, plan, train, unvalidated, weights

from sweeper import AtStep, EverySteps, TrainingStep
from sweeper.checkpoint.reading import load_checkpoint, load_newest
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.state import state as state_module

STEPS = 14
"""Of two epochs; seven in each."""


def light_settings():
    """As `settings`, with an optimizer that is quickly traced and has slots."""
    return {**settings(), "optimizer": keras.optimizers.SGD(0.05, momentum=0.5), "metrics": None}


def regularized():
    """Not compiled: a seed generator, and one layer that adds to the loss."""
    dense = keras.layers.Dense(4, "softmax", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), dense])


class NoisyStep(TrainingStep):
    """Draws from a generator, counts in a variable and averages weights, all its own."""

    def __init__(self):
        super().__init__(**light_settings())
        self.noise = keras.random.SeedGenerator(3)
        self.parts = {"count": keras.Variable(0.0, trainable=False, name="count")}
        self.norm = keras.metrics.Mean("norm")

    def make_batch(self, batch, *, training):
        if not training:
            return batch
        x, y = batch
        self.parts["count"].assign_add(1.0)
        scale = 0.01 * self.parts["count"]
        return x + scale * keras.random.normal(tf.shape(x), seed=self.noise), y

    def process_gradients(self, gradients, values):
        self.norm.update_state(tf.linalg.global_norm(gradients))
        return gradients


PLANS = {
    "defaults": lambda: plan(model=uncompiled, step=default, epochs=2),
    "noise": lambda: plan(model=regularized, step=NoisyStep, epochs=2),
    "groups": lambda: plan(model=uncompiled, step=GroupsStep, epochs=2),
    "two networks": lambda: plan(model=maker, step=GanStep, epochs=2),
    "eager": lambda: plan(model=regularized, step=eager, data=unvalidated, epochs=1),
    "accumulating": lambda: plan(model=uncompiled, step=accumulating, epochs=2),
}


def eager():
    return TrainingStep(**light_settings(), run_eagerly=True)


def accumulating():
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    return TrainingStep(**{**settings(), "optimizer": optimizer})


def outcome(loop):
    """The variables of the model and all that the step leads to, and the history."""
    components = {c.name: c for c in loop._state.components}
    tensors = {}
    for name in ("model", "optimizer", "optimizers", "metrics", "reachable"):
        components[name].capture(tensors)
    return [np.asarray(tensors[name]) for name in sorted(tensors)], loop.history.history


def interrupted(make, directory, stops):
    for stop in stops:
        train(make(), Watcher(directory, stop_at=stop), load_newest([directory], pytest.fail))
    return outcome(train(make(), Watcher(directory), load_newest([directory], pytest.fail)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a training without a stop comes to, and its checkpoint after so many steps; once."""

    @cache
    def of(what, step):
        directory = tmp_path_factory.mktemp("whole")
        watcher = Watcher(directory, lambda position: position.step == step, block=1)
        return outcome(train(PLANS[what](), watcher)), watcher.kept[0]

    return of


# By default what has most state of its own, and what runs without a graph; the defaults are in both.
# The first of the steps is where the training without a stop took a checkpoint.
@pytest.mark.parametrize(
    ("what", "steps"),
    [
        ("two networks", [10]),
        ("eager", [3]),
        *(
            pytest.param(what, [3, 5 if what == "eager" else 10], marks=pytest.mark.whole)
            for what in PLANS
        ),
    ],
)
def test_a_step_resumed_inside_an_epoch_ends_as_if_it_never_stopped(what, steps, whole, tmp_path):
    expected, taken = whole(what, steps[0])
    shutil.copytree(taken, tmp_path / taken.name)
    assert load_checkpoint(taken).step == steps[0]
    resumed = interrupted(PLANS[what], tmp_path, steps[1:])
    assert equal(expected[0], resumed[0])
    assert expected[1] == resumed[1]


def test_without_what_the_step_leads_to_it_would_not(whole, tmp_path, monkeypatch):
    """Negative control: a walk that does not begin at the step loses its optimizers and weights."""
    from sweeper.train.state import variables

    expected, _ = whole("two networks", 10)
    monkeypatch.setattr(state_module, "Reach", lambda model, step: variables.Reach(model))
    monkeypatch.setattr(state_module.UserState, "_capture", lambda *given: {"changed": {}})
    resumed = interrupted(PLANS["two networks"], tmp_path, [10])
    # That walk finds fewer variables at the end as well; what the losses were does not ask it.
    assert not equal(expected[0], resumed[0])
    assert expected[1] != resumed[1]


# Calls at steps.


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
        pytest.param(list(range(1, STEPS)), id="at every step", marks=pytest.mark.whole),
    ],
    ids=str,
)
def test_no_call_is_made_twice_or_left_out_however_often_it_is_resumed(stops, tmp_path):
    whole = []
    kinds = (lambda f: EverySteps(4, f), lambda f: AtStep(9, f), lambda f: AtStep(7, f))
    train(calling(whole, *kinds)(), Watcher())
    assert numbers(whole) == [4, 7, 8, 9, 12]
    calls = []
    interrupted(calling(calls, *kinds), tmp_path, stops)
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
    whole = outcome(train(make(), watcher))
    loaded = load_checkpoint(watcher.kept[0])
    assert loaded.step == 6
    resumed = outcome(train(make(), Watcher(), loaded))
    assert equal(whole[0], resumed[0])
    free = outcome(train(light(tuple, step=Freezes), Watcher()))
    assert not equal(whole[0], free[0])


def test_summaries_written_at_steps_are_there_once_for_each_step_after_a_resume(tmp_path):
    def make():
        return light(lambda: [Summaries(logs)])

    logs = tmp_path / "logs"
    whole = outcome(train(make(), Watcher()))
    first = written(logs)
    assert [step for step, _ in first] == [3, 6, 9, 12]
    for file in logs.iterdir():
        file.unlink()
    resumed = interrupted(make, tmp_path / "checkpoints", [5])
    assert whole[1] == resumed[1]
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
