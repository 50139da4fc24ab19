"""What the five sources that this project answers ask for, each demand by name.

`docs/reference/sources.md` has the whole table. 000: accurately resuming a Keras run. 001: why
checkpoint, and choosing among checkpoints. 002: ``tf.train.Checkpoint`` from the inside. 003: a small
framework for training on several GPUs. 004: Keras models are modified in place.
"""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Watcher, equal, one_layer, plan, train, unvalidated, weights

from sweeper import AtStep, Data, EverySteps, Keep, TrainingStep, Trial, WarmStart, fit
from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.checkpoints.policy import KeptCheckpoint
from sweeper.checkpoints.reading import list_checkpoints, load_checkpoint, load_newest
from sweeper.errors import IndependenceError, RestoreError, UncapturableError, WarmStartError
from sweeper.gradients import clip_by_global_norm, nan_to_zero
from sweeper.independence.factories import build_model
from sweeper.independence.guard import Earlier, Guard
from sweeper.training.randomness.seeds import TrialSeeds
from sweeper.training.warmstart.matching import match_warm_start

HOUR = 3600.0


# 000


class PerBatchSchedule(keras.callbacks.Callback):
    """The source's: a learning rate by batch, whose counter is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = 0.05 * 0.9**self.counter
        self.model.optimizer.learning_rate = rate
        self.rates.append(rate)
        self.counter += 1


def test_000_a_schedule_per_batch_goes_on_at_the_exact_batch_after_three_stops(
    tmp_path: Path,
) -> None:
    def planned() -> Any:
        return plan(
            model=one_layer, data=unvalidated, callbacks=lambda: [PerBatchSchedule()], epochs=2
        )

    whole = train(planned(), Watcher())
    for stop in (2, 5, 7):
        loaded = load_newest([tmp_path], pytest.fail)
        train(planned(), Watcher(tmp_path, stop_at=stop), loaded)
    resumed = train(planned(), Watcher(), load_newest([tmp_path], pytest.fail))
    rates = [loop._plan.callbacks[0].rates for loop in (whole, resumed)]  # type: ignore[attr-defined]
    assert rates[0] == rates[1] == [0.05 * 0.9**n for n in range(len(rates[0]))]
    assert len(set(rates[0])) > 8, "control: a counter that began again would repeat its rates"
    assert equal(weights(whole._plan.model), weights(resumed._plan.model))


# 001


def overfits(metrics: Any) -> bool:
    return bool(metrics["val_loss"] > metrics["loss"])


class PowerCut(keras.callbacks.Callback):
    """Raises in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch
        self._seen = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._seen = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._seen == self._epoch and batch == 1:
            raise ConnectionError

    def get_state(self) -> dict[str, Any]:
        """Nothing: when the power is cut is not for the training to remember."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state


def small_net() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def noisy_data() -> Data:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(40, 4)).astype("float32")
    y = generator.normal(size=(40, 1)).astype("float32")
    # Every third step is an "epoch": validated, and offered to the retention rules.
    return Data(
        train=(x[:24], y[:24]), validation=(x[24:], y[24:]), batch_size=4, steps_per_epoch=3
    )


def test_001_every_n_steps_a_checkpoint_below_the_best_so_far_and_above_the_training_cost_is_kept(
    tmp_path: Path,
) -> None:
    keep = Keep(last=1, improving="val_loss", when=overfits, at_most=150)

    def run(directory: Path, cut_at: int = -1) -> Any:
        return fit(
            small_net(),
            noisy_data(),
            epochs=16,
            checkpoints=directory,
            callbacks=[PowerCut(cut_at)],
            keep=keep,
            deterministic=False,
        )

    def steps(directory: Path) -> list[int]:
        return [load_checkpoint(path).step for path in list_checkpoints(directory)]

    history = run(tmp_path / "whole").history
    chosen, best = [], 99999.0
    for epoch, (cost, validation) in enumerate(
        zip(history["loss"], history["val_loss"], strict=True), 1
    ):
        if validation < best and validation > cost:
            chosen.append(3 * epoch)
            best = validation
    assert 1 < len(chosen) < 16
    assert steps(tmp_path / "whole") == sorted({*chosen, 48})
    with pytest.raises(ConnectionError):
        run(tmp_path / "cut", 6)
    assert run(tmp_path / "cut").history == history
    assert steps(tmp_path / "cut") == steps(tmp_path / "whole")


# 002


def test_002_the_managers_retention_options_are_rules() -> None:
    """``CheckpointManager(max_to_keep=3, keep_checkpoint_every_n_hours=2)``."""
    keep = Keep(last=3, every_hours=2)
    present: list[KeptCheckpoint] = []
    for step in range(1, 13):
        hours = step / 2
        taken = KeptCheckpoint(step, step, Path(f"{step}"), trained_seconds=hours * HOUR)
        present = [*present, taken]
        present = [c for c in present if c not in keep.select(present)]
    # Those of every second hour are not limited by the number of the newest.
    assert [c.step for c in present] == [4, 8, 10, 11, 12]


def a_trial(directory: Path) -> Trial:
    return Trial(number=0, seed=1, directory=directory, ask=lambda *_: 0)


def test_002_a_step_and_a_generator_of_the_users_are_saved_by_name(tmp_path: Path) -> None:
    class Counts(keras.callbacks.Callback):
        def __init__(self, step: tf.Variable, noise: tf.random.Generator) -> None:
            super().__init__()
            self.step, self.noise = step, noise

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.step.assign_add(1)
            self.model.layers[0].kernel.assign_add(1e-3 * self.noise.normal((8, 1)))

    def planned() -> tuple[Any, tf.Variable]:
        trial = a_trial(tmp_path)
        step = trial.track("step", tf.Variable(1, trainable=False))
        noise = trial.track("noise", tf.random.Generator.from_seed(5))
        made = plan(
            model=one_layer,
            data=unvalidated,
            callbacks=lambda: [Counts(step, noise)],
            tracked=lambda: trial.tracked,
        )
        return made, step

    whole, counted = planned()
    watcher = Watcher(tmp_path / "checkpoints", lambda position: position.step == 9)
    train(whole, watcher)
    loaded = load_checkpoint(watcher.kept[0])
    assert int(loaded.tensors["tracked/step"]) == 1 + 9
    assert any(name.startswith("tracked/noise") for name in loaded.tensors)
    resumed, step = planned()
    train(resumed, Watcher(), loaded)
    assert equal(weights(resumed.model), weights(whole.model))
    assert int(step.numpy()) == int(counted.numpy())


def test_002_an_untrackable_object_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UncapturableError) as raised:
        a_trial(tmp_path).track("test", [])
    assert str(raised.value) == (
        "track('test', …) was given a builtins.list, whose value cannot be brought back into it; give a "
        "tf.Variable, a tf.random.Generator, a Keras layer, optimizer, metric or SeedGenerator, a "
        "NumPy Generator, or an object with get_state() and set_state(state) (for a number that "
        "counts: tf.Variable(0, trainable=False))"
    )


class Net(keras.Model):
    """The source's: variables that the first call makes."""

    def __init__(self) -> None:
        super().__init__(name="net")
        self.l1 = keras.layers.Dense(5)

    def call(self, x: Any) -> Any:
        return self.l1(x)


def late_net() -> keras.Model:
    model = Net()
    model.compile("sgd", "mae")
    return model


def toy_data() -> Data:
    inputs = np.arange(10.0, dtype="float32")[:, None]
    labels = inputs * 5.0 + np.arange(5.0, dtype="float32")
    return Data(train=(inputs, labels), batch_size=2)


def net_plan(**options: Any) -> Any:
    return plan(model=late_net, data=toy_data, epochs=2, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, LoadedCheckpoint]:
    """The network after its two epochs, and its checkpoint inside the second."""
    whole = net_plan()
    directory = tmp_path_factory.mktemp("whole")
    watcher = Watcher(directory, lambda position: position.step == 7, block=1)
    train(whole, watcher)
    return whole.model, load_checkpoint(watcher.kept[0])


def test_002_a_restore_is_complete_or_an_error_never_silent(
    trained: tuple[keras.Model, LoadedCheckpoint],
) -> None:
    whole, loaded = trained
    assert loaded.step == 7
    fresh = net_plan()
    assert fresh.model.trainable_variables == []
    train(fresh, Watcher(), loaded)
    assert equal(weights(fresh.model), weights(whole))
    other = plan(model=one_layer, data=unvalidated, epochs=2)
    with pytest.raises(RestoreError, match="does not fit this trial's model") as raised:
        train(other, Watcher(), loaded)
    assert "nothing was restored" in str(raised.value)


def written(net: Any, directory: Path, how: str) -> tuple[Any, list[Any]]:
    """A trained net in one of the source's forms, and its values."""
    values = [v.numpy() for v in net.variables]
    if how == "save_weights":
        net.save_weights(directory / "net.weights.h5")
        return directory / "net.weights.h5", values
    step = tf.Variable(10, dtype=tf.int64)
    if how == "manager":
        saved = tf.train.Checkpoint(step=step, optimizer=net.optimizer, net=net)
        manager = tf.train.CheckpointManager(saved, directory, 3, checkpoint_name="test")
        manager.save()
        return directory, values
    # An Estimator with ``Scaffold(saver=Checkpoint(step=…, optimizer=…, net=…))``: Keras 2's names.
    tree = tf.__internal__.tracking.AutoTrackable
    theirs = tree()
    theirs.l1 = tree()
    theirs.l1.kernel, theirs.l1.bias = map(tf.Variable, values)
    optimizer = tree()
    optimizer.iter = tf.Variable(10, dtype=tf.int64)
    estimated = tf.train.Checkpoint(step=step, optimizer=optimizer, net=theirs)
    return Path(estimated.write(str(directory / "model.ckpt-10"))), values


@pytest.mark.parametrize("how", ["save_weights", "manager", "estimator"])
def test_002_weights_checkpoints_and_an_estimators_files_all_begin_a_fresh_unbuilt_network(
    how: str, trained: tuple[keras.Model, LoadedCheckpoint], tmp_path: Path
) -> None:
    path, values = written(trained[0], tmp_path, how)
    seen: list[Any] = []

    class Begins(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            seen.extend(v.numpy() for v in self.model.variables)

    planned = replace(net_plan(callbacks=lambda: [Begins()]), warm_start=WarmStart(path))
    assert planned.model.variables == []
    train(planned, Watcher())
    assert equal(seen, values)


def test_002_a_network_with_other_names_is_refused_with_each(
    trained: tuple[keras.Model, LoadedCheckpoint], tmp_path: Path
) -> None:
    path, _ = written(trained[0], tmp_path, "manager")

    class Other(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="other")
            self.dense = keras.layers.Dense(5, name="dense")

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Other()
    model(np.zeros((1, 1), "float32"))
    with pytest.raises(WarmStartError) as raised:
        match_warm_start(WarmStart(path, root="net"), model)
    assert str(raised.value).splitlines()[1:-1] == [
        "  other/dense/kernel is not in it; looked for dense/_kernel",
        "  other/dense/bias is not in it; looked for dense/bias",
        "  l1/_kernel (float32[1, 5]) is in it, and not in the model",
        "  l1/bias (float32[5]) is in it, and not in the model",
    ]


# 003


class EveryPart(TrainingStep):
    """One method for each of the source's hooks, each of which notes that it was called."""

    def __init__(self) -> None:
        super().__init__(  # create_opt, create_loss
            optimizer=keras.optimizers.SGD(0.1),
            loss="sparse_categorical_crossentropy",
            gradients=[nan_to_zero, clip_by_global_norm(0.05)],
        )
        self.calls: set[str] = set()

    def make_batch(self, batch: Any, *, training: bool) -> Any:  # make_batches
        self.calls.add("make_batch")
        return super().make_batch(batch, training=training)

    def inputs(self, batch: Any) -> Any:  # input_pre
        self.calls.add("inputs")
        return super().inputs(batch)

    def loss_inputs(self, batch: Any, outputs: Any) -> Any:  # loss_pre
        self.calls.add("loss_inputs")
        return super().loss_inputs(batch, outputs)

    def extra_losses(self) -> Any:
        self.calls.add("extra_losses")
        return [1e-3 * tf.reduce_sum(tf.square(self.model.trainable_variables[0]))]

    def process_gradients(self, gradients: Any, values: Any) -> Any:  # grad_pre
        self.calls.add("process_gradients")
        broken = [tf.where(tf.constant(True), g * float("nan"), g) for g in gradients[:1]]
        processed = super().process_gradients([*broken, *gradients[1:]], values)
        self.norm.assign(tf.linalg.global_norm(processed))
        self.first.assign(tf.reduce_sum(tf.abs(processed[0])))
        return processed

    def update(self, gradients: Any, variables: Any, values: Any) -> None:  # update_pre
        self.calls.add("update")
        super().update(gradients, variables, values)

    def on_bind(self) -> None:
        self.norm = tf.Variable(1.0, trainable=False)
        self.first = tf.Variable(1.0, trainable=False)


def test_003_every_part_of_one_loop_is_replaced_and_things_happen_every_and_at_some_step() -> None:
    seen: list[tuple[str, int]] = []
    step = EveryPart()

    def network() -> keras.Model:
        return keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(4, "softmax")]
        )

    def callbacks() -> list[keras.callbacks.Callback]:
        return [
            EverySteps(3, lambda at, logs, model: seen.append(("every 3", at))),
            AtStep(5, lambda at, logs, model: seen.append(("at 5", at))),
        ]

    planned = plan(
        model=network, data=unvalidated, step=lambda: step, callbacks=callbacks, epochs=2
    )
    loop = train(planned, Watcher())
    assert step.calls == {
        *("make_batch", "inputs", "loss_inputs", "extra_losses", "process_gradients", "update")
    }
    assert float(step.first) == 0.0, "gradients that are no numbers are zero"
    assert float(step.norm) == pytest.approx(0.05, rel=1e-4), "clipped by their global norm"
    steps = int(loop._plan.model.optimizer.iterations.numpy())
    assert seen == sorted(
        [*(("every 3", n) for n in range(3, steps + 1, 3)), ("at 5", 5)], key=lambda each: each[1]
    )


# 004


def test_004_two_rates_on_one_model_are_one_curve_and_two_models_are_two_and_one_is_refused(
    tmp_path: Path,
) -> None:
    """The source's comparison: RMSprop with two learning rates on "copies" of one model."""

    def compiled(model: keras.Model, rate: float) -> keras.Model:
        model.compile(keras.optimizers.RMSprop(rate), "sparse_categorical_crossentropy")
        return model

    def net() -> keras.Model:
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])

    def curve(model: keras.Model) -> list[float]:
        loop = train(plan(model=lambda: model, data=unvalidated, epochs=3), Watcher())
        return [epoch.metrics["loss"] for epoch in loop.epochs]

    shared = net()
    first, continued = (curve(compiled(shared, rate)) for rate in (0.01, 0.0001))
    assert continued[0] < first[1], "the pitfall: the second curve goes on where the first ended"
    right = curve(compiled(net(), 0.0001))
    assert right[0] > first[1], "a model of its own begins at the beginning"

    gc.unfreeze()  # The guard freezes what there is by itself, as in a process of its own.
    seeds = TrialSeeds(0, 0)
    trial = Trial(number=0, seed=seeds.root, directory=tmp_path, ask=lambda *_: 0.001)
    with (
        Guard(trial=0, warn=pytest.fail, earlier=Earlier()) as guard,
        pytest.raises(IndependenceError) as refused,
    ):
        build_model(lambda trial: compiled(shared, 0.01), trial, seeds, guard)
    assert "is the model of this trial and closure variable 'shared' of <lambda>" in str(
        refused.value
    )
    with Guard(trial=0, warn=pytest.fail, earlier=Earlier()) as guard:
        build_model(lambda trial: compiled(net(), 0.01), trial, seeds, guard)


def test_each_demand_of_the_table_that_names_a_test_has_it() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/sources.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| 00")]
    assert [row[2:5] for row in rows] == ["000", "001", "002", "003", "004"]
    named = set(re.findall(r"`(test_00\w+)`", page))
    assert named == {name for name in globals() if name.startswith("test_00")}
