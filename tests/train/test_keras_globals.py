"""What Keras keeps for the whole process is restored, whatever a callback has made of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Watcher, equal, plan, train, unvalidated, weights

from sweeper.checkpoint.reading import load_newest
from sweeper.errors import UncapturableError
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.randomness.generators import GlobalSeedGenerator


def both() -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)


MEDDLING: dict[str, Callable[[], object]] = {
    "clears": keras.utils.clear_session,
    "reseeds": lambda: keras.utils.set_random_seed(11),
    "both": both,
}


class Noise(keras.layers.Layer):
    """Draws from Keras's global generator in the step."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), stddev=0.1) if training else x


class Meddles(keras.callbacks.Callback):
    """Draws from the global generator, and does something to it in the middle."""

    def __init__(self, what: str, at: tuple[int, ...]) -> None:
        super().__init__()
        self.what = what
        self.at = at
        self.count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        if self.count in self.at:
            MEDDLING[self.what]()
        if self.count % 2:
            kernel = self.model.layers[-1].kernel
            kernel.assign_add(0.01 * keras.random.normal(kernel.shape))


def build(*, eager: bool) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((8,)), Noise(), keras.layers.Dense(4, activation="softmax")]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", run_eagerly=eager)
    return model


def planned(what: str, *, at: tuple[int, ...] = (4,), eager: bool = False) -> TrainingPlan:
    return plan(
        model=lambda: build(eager=eager),
        data=unvalidated,
        callbacks=lambda: [Meddles(what, at)],
        epochs=2,
    )


def ends(
    directory: Path, what: str, stops: tuple[int, ...], **options: Any
) -> list[np.ndarray[Any, Any]]:
    for stop in stops:
        go_on(directory, what, stop, **options)
    return weights(go_on(directory, what, None, **options))


def go_on(directory: Path, what: str, stop: int | None, **options: Any) -> keras.Model:
    """The model at the next stop, or at the end."""
    made = planned(what, **options)
    # Nothing of the process that made the checkpoint may help the one that goes on.
    random.seed(None)
    loaded = load_newest([directory], pytest.fail) if directory.exists() else None
    if loaded is None:
        random.seed(5)
    train(made, Watcher(directory=directory, stop_at=stop), loaded)
    return made.model


@pytest.mark.parametrize(
    ("what", "eager"),
    [
        pytest.param("both", False, id="both-graph"),
        pytest.param("clears", True, id="clears-eager", marks=pytest.mark.whole),
        pytest.param("clears", False, id="clears-graph", marks=pytest.mark.whole),
        pytest.param("reseeds", False, id="reseeds-graph", marks=pytest.mark.whole),
        pytest.param("reseeds", True, id="reseeds-eager", marks=pytest.mark.whole),
        pytest.param("both", True, id="both-eager", marks=pytest.mark.whole),
    ],
)
def test_a_global_generator_that_a_callback_replaces_resumes_exactly(
    what: str, eager: bool, tmp_path: Path
) -> None:
    """Stopped before anything is done to it, right after, and after the second time."""
    options: dict[str, Any] = {"eager": eager, "at": (4, 8)}
    whole = ends(tmp_path / "whole", what, (), **options)
    assert equal(whole, ends(tmp_path / "stopped", what, (3, 4, 9), **options))


class Predicts(Meddles):
    """Runs a function of TensorFlow's that draws from the global generator as it was then."""

    def __init__(self, what: str, at: tuple[int, ...]) -> None:
        super().__init__(what, at)
        self.drawn = tf.function(lambda: keras.random.normal(()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.drawn()


@pytest.mark.parametrize(("at", "refused"), [((9,), True), ((3,), False), ((), False)], ids=str)
def test_a_function_traced_with_a_generator_that_was_replaced_is_refused(
    at: tuple[int, ...], refused: bool
) -> None:
    """Replaced after the trace, before it, and never."""
    made = plan(
        model=lambda: build(eager=False),
        data=unvalidated,
        callbacks=lambda: [Predicts("clears", at)],
        epochs=2,
    )
    watcher = Watcher(snapshot_at=lambda position: position.step in (7, 10))
    if refused:
        with pytest.raises(UncapturableError, match="was traced with Keras's global seed gen"):
            train(made, watcher)
    else:
        train(made, watcher)


@pytest.fixture(scope="module")
def replaced(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[np.ndarray[Any, Any]]]:
    """What was there at a stop after it was replaced, and the end of a training without a stop."""
    directory = tmp_path_factory.mktemp("replaced")
    go_on(directory / "stopped", "both", 6)
    return directory / "stopped", ends(directory / "whole", "both", ())


@pytest.mark.parametrize("forgotten", ["traced", "state"])
def test_either_generator_left_out_shows(
    forgotten: str,
    replaced: tuple[Path, list[np.ndarray[Any, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the step goes by the one it was traced with, callbacks by the new one."""
    stopped, whole = replaced
    restore = GlobalSeedGenerator.restore

    def forgetful(self: GlobalSeedGenerator, saved: Any, tensors: Any) -> None:
        other = {**tensors, f"{self.name}/{forgotten}": np.array([1, 2], "int32")}
        restore(self, saved, other)

    monkeypatch.setattr(GlobalSeedGenerator, "restore", forgetful)
    shutil.copytree(stopped, tmp_path / "stopped")
    assert not equal(whole, ends(tmp_path / "stopped", "both", ()))
