"""A lane's result is its own: alone and in any company, from its beginning or resumed."""

from __future__ import annotations

import functools
import random
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from lane_trainings import (
    GRAPHS,
    LANES,
    Outcome,
    Trainings,
    Watcher,
    arrays,
    loaded_from,
    network,
    samples,
)

from sweeper import Data, EverySteps
from sweeper.errors import LanesError
from sweeper.lanes import conversion
from sweeper.lanes.process_state import ProcessState
from sweeper.lanes.scheduler import LaneScheduler
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything


def differing(one: Outcome, other: Outcome) -> list[str]:
    """The tensors that differ between two ends."""
    a, b = one.tensors(), other.tensors()
    assert a.keys() == b.keys()
    return [name for name in a if a[name] != b[name]]


@pytest.fixture(scope="module")
def full() -> dict[int, Outcome]:
    """Four trials as the four lanes of one scheduler."""
    return Trainings().together(0, 1, 2, 3)


@pytest.mark.parametrize("company", [(0,), (3, 5, 6)])
def test_a_lane_in_other_company_ends_as_in_a_full_group(
    full: dict[int, Outcome], company: tuple[int, ...]
) -> None:
    trained = Trainings(shared=False).together(*company)

    assert differing(trained[company[0]], full[company[0]]) == []


def test_lanes_that_see_their_neighbours_random_numbers_are_noticed(
    full: dict[int, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = conversion._once_a_lane

    def of_lane_0(given: Any, lanes: int) -> list[Any]:
        results = exact(given, lanes)
        if given.op_type.startswith("StatelessRandomUniform"):
            return [each._replace(t=tf.stack([each.t[0]] * lanes)) for each in results]
        return results

    monkeypatch.setattr(conversion, "_once_a_lane", of_lane_0)
    trained = Trainings(shared=False).together(0, 3)

    assert differing(trained[0], full[0]) == []
    assert differing(trained[3], full[3])


@pytest.mark.parametrize("step", [3, 5])
def test_a_lane_that_was_stopped_goes_on_in_other_company(
    full: dict[int, Outcome], tmp_path: Path, step: int
) -> None:
    stopped = Trainings().together(1, 2, stop_at={2: step})
    assert stopped[2].stopped
    assert differing(stopped[1], full[1]) == []

    resumed = Trainings().together(2, 4, loaded={2: loaded_from(stopped[2], tmp_path)})

    assert differing(resumed[2], full[2]) == []


class Drawing(keras.callbacks.Callback):
    """Draws from every global generator after an epoch, and lets nothing else of it be seen."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        drawn = [
            random.random(),
            np.random.random(),
            float(keras.random.uniform(())),
            float(tf.random.uniform(())),
            float(tf.random.uniform((), seed=3)),
            float(np.random.default_rng().random()),
        ]
        for at, value in enumerate(drawn):
            logs[f"drawn_{at}"] = value


def test_what_callbacks_draw_from_global_generators_is_the_lanes_own() -> None:
    trainings = Trainings(callbacks=lambda _number: [Drawing()], epochs=3)

    alone, together = trainings.together(1), trainings.together(0, 1, 2)

    assert differing(alone[1], together[1]) == []
    assert alone[1].watcher.epochs != together[0].watcher.epochs
    first, second = (alone[1].watcher.epochs[at] for at in (0, 1))
    assert all(first[f"drawn_{at}"] != second[f"drawn_{at}"] for at in range(6))


def test_generators_that_are_not_exchanged_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = Trainings(callbacks=lambda _number: [Drawing()])
    alone = trainings.together(1)

    monkeypatch.setattr(ProcessState, "put_back", lambda _state: None)
    together = trainings.together(0, 1)

    assert differing(alone[1], together[1])


class Leaving(keras.callbacks.Callback):
    """Stops training, raises, or makes the weights NaN, after the first epoch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            return
        if self.how == "stop":
            self.model.stop_training = True
        elif self.how == "nan":
            self.model.layers[0].kernel.assign(self.model.layers[0].kernel * float("nan"))
        else:
            raise RuntimeError(self.how)


def failing_model(number: int) -> keras.Model:
    if number == 1:
        msg = "no model for trial 1"
        raise RuntimeError(msg)
    return network(number)


def mislabelled(number: int) -> Data:
    x, y = samples()
    labels = np.where(np.arange(len(y)) == 60, 9, y) if number == 1 else y
    return Data(train=(x, labels), validation=(x[:21], y[:21]), batch_size=16)


@pytest.mark.parametrize("how", ["stop", "pruned", "nan", "raise", "factory", "label", "full disk"])
def test_a_lane_that_leaves_changes_no_other(full: dict[int, Outcome], how: str) -> None:
    if how == "factory":
        trainings = Trainings(model=failing_model)
    elif how == "label":
        trainings = Trainings(data=mislabelled)
    elif how == "pruned":
        trainings = Trainings(pruned=(1,))
    elif how == "full disk":
        trainings = Trainings(full=(1,))
    else:
        trainings = Trainings(callbacks=lambda number: [Leaving(how)] if number == 1 else [])

    trained = trainings.together(0, 1)

    assert differing(trained[0], full[0]) == []
    left = trained[1]
    errors = {
        "raise": RuntimeError,
        "factory": RuntimeError,
        "label": tf.errors.InvalidArgumentError,
        "full disk": OSError,
    }
    assert type(left.error) is errors.get(how, type(None))
    assert len(left.watcher.epochs) == {"stop": 1, "pruned": 1, "nan": 2, "full disk": 1}.get(
        how, 0
    )
    if how == "nan":
        assert np.isnan(left.watcher.epochs[1]["loss"])


def test_a_trial_that_enters_later_ends_as_one_that_was_there_from_the_beginning(
    full: dict[int, Outcome],
) -> None:
    trainings, scheduler = Trainings(), LaneScheduler(LANES)
    scheduler._graphs = GRAPHS
    outcomes = {number: Outcome(Watcher()) for number in (0, 1)}
    scheduler.add(0, trainings.lane(0, outcomes[0]))
    for _ in range(3):
        scheduler.advance()
    assert outcomes[0].watcher.step
    scheduler.add(1, trainings.lane(1, outcomes[1]))
    scheduler.run()

    assert scheduler.free == frozenset(range(LANES))
    assert [differing(outcomes[n], full[n]) for n in (0, 1)] == [[], []]


def other_widths(number: int) -> keras.Model:
    return compiled(None, keras.layers.Dense(4 + number % 2))


def other_closures(number: int) -> keras.Model:
    """Models that differ in nothing but what a function holds, which no configuration shows."""
    return compiled(None, keras.layers.Lambda(lambda x: x * (1.5 + number % 2)))


@pytest.mark.parametrize("model", [other_widths, other_closures])
def test_trials_whose_graphs_differ_are_fused_apart(model: Any) -> None:
    trainings, scheduler = Trainings(model=model, epochs=1), LaneScheduler(LANES)
    outcomes = {number: Outcome(Watcher()) for number in range(3)}
    for number, outcome in outcomes.items():
        scheduler.add(number, trainings.lane(number, outcome))
    scheduler.run()

    assert len(scheduler._graphs) == 4  # training and validation, of two graphs
    assert differing(outcomes[1], trainings.together(1)[1]) == []


def test_a_fused_trial_trains_as_an_unfused_one_to_the_last_digits(
    full: dict[int, Outcome],
) -> None:
    seeds, watcher = TrialSeeds(7, 1), Watcher()
    seed_everything(seeds.child("model"))
    model = network(1)
    seed_everything(seeds.child("training"))
    plan = TrainingPlan(model, arrays(1), [], 2, None, seeds.sequence("order"))
    TrainingLoop(plan, watcher).run()

    for fused, unfused in zip(full[1].watcher.epochs, watcher.epochs, strict=True):
        assert fused == pytest.approx(unfused, rel=1e-4)


def weighted(number: int) -> Data:
    x, y = samples(64, number)
    return Data(train=(x, y, np.linspace(0, 1, 64)), batch_size=16)


def test_lanes_have_data_and_sample_weights_of_their_own() -> None:
    trainings = Trainings(data=weighted)

    together = trainings.together(0, 1, 3)

    assert differing(together[3], trainings.together(3)[3]) == []
    assert together[0].watcher.epochs != together[1].watcher.epochs


class Growing(keras.layers.Layer):
    """Doubles its input as often as it takes, which differs between lanes, and branches on it."""

    def call(self, x: Any) -> Any:
        x = keras.ops.stop_gradient(x)
        grown = keras.ops.while_loop(
            lambda v: keras.ops.max(keras.ops.abs(v)) < 100, lambda v: [v * 2], [x]
        )[0]
        return keras.ops.cond(keras.ops.max(grown) > 100, lambda: grown, lambda: -grown)


def test_loops_and_branches_that_differ_between_lanes_are_exact() -> None:
    trainings = Trainings(model=lambda _: compiled(None, Growing()), data=weighted, epochs=1)

    together, alone = trainings.together(0, 1, 3), trainings.together(3)

    assert differing(together[3], alone[3]) == []
    unrolled = " ".join(chain.from_iterable(fused.unrolled for fused in GRAPHS.values()))
    assert "While" in unrolled
    assert "If" in unrolled


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class EveryBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs


@functools.cache
def shared_counter() -> tf.Variable:
    return tf.Variable(0.0, name="shared_counter")


class Shared(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        shared_counter()

    def call(self, x: Any) -> Any:
        return x + shared_counter()


class Calling(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape)


def compiled(model: keras.Model | None = None, *layers: Any, **options: Any) -> keras.Model:
    model = model or keras.Sequential()
    for layer in (keras.Input((8,)), *layers, keras.layers.Dense(4)):
        model.add(layer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(options.pop("optimizer", "sgd"), loss, **options)
    return model


def jit_compiled() -> keras.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras leaves it out where kernels are deterministic
        return compiled(jit_compile=True)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda _: compiled(OwnStep()), "train_step of its own"),
        (lambda _: compiled(run_eagerly=True), "run_eagerly=True"),
        (lambda _: jit_compiled(), "jit_compile=True"),
        (lambda _: compiled(None, Shared()), "shared_counter"),
        (lambda _: compiled(None, Calling()), "calls Python"),
        (
            lambda _: compiled(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2)),
            "gradient_accumulation_steps",
        ),
    ],
)
def test_what_cannot_be_fused_is_refused_by_name(model: Any, named: str) -> None:
    trained = Trainings(model=model).together(0)

    assert isinstance(trained[0].error, LanesError)
    assert named in str(trained[0].error)


def test_callbacks_of_single_batches_and_data_that_are_no_arrays_are_refused_by_name() -> None:
    listening = Trainings(callbacks=lambda _: [EveryBatch()]).together(0)
    x, y = samples()
    dataset = Trainings(data=lambda _: Data(train=tf.data.Dataset.from_tensors((x, y)))).together(0)

    assert "EveryBatch is called for every batch" in str(listening[0].error)
    assert "lanes take arrays only" in str(dataset[0].error)


def test_callbacks_between_steps_are_called_as_ever() -> None:
    seen: list[int] = []

    seeing = EverySteps(2, lambda step, _logs, _model: seen.append(step))

    Trainings(callbacks=lambda number: [seeing] if number else []).together(0, 1)

    assert seen == [2, 4, 6, 8, 10]
