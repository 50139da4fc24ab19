"""Whatever a training carries, it ends the same when it is stopped on its way.

Each case is trained once without a stop, and once stopped, going on in fresh objects: in the middle of
an epoch, at an epoch's end or inside a validation; with ``-m whole`` at all three in turn. What takes
longest to trace goes on from a checkpoint that the training without a stop takes on its way. Everything
is compared: the whole last snapshot, the weights after the end, the history, and the files that
callbacks wrote.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import exactness_callbacks as calls
import exactness_models as models
import keras
import numpy as np
import pytest
import test_text_data as texts
from exactness_models import STEPS, compiled
from keras import layers, optimizers
from test_eager_seeds import TOGETHER, drawn
from test_fresh_entropy import UNSEEDED
from test_graph_generators import DRAWS, Noise
from trainings import Watcher, leave_out, plan, train, without_component

from sweeper import Data
from sweeper.checkpoint.reading import load_checkpoint, load_newest
from sweeper.train.state.state import Position

STEP, EPOCH, VALIDATION = STOPS = [("step", 2), ("epoch", 0), ("validation", 1)]
"""With two steps an execution, a step that ends one."""


@dataclass(frozen=True)
class Case:
    """One combination. ``optimizer`` is the class of the model's own, ``stop`` where it is stopped."""

    name: str
    optimizer: str
    stop: tuple[str, int]
    model: Callable[[], keras.Model]
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple
    data: Callable[[], Data] = models.data
    tracked: Callable[[], Mapping[str, Any]] = dict

    def plan(self):
        return plan(
            model=self.model,
            data=self.data,
            callbacks=self.callbacks,
            epochs=3,
            tracked=self.tracked,
        )


def draws_in_graphs():
    return compiled(optimizers.SGD(0.05), first=[Noise(tuple(DRAWS))])


CASES = [
    Case(
        "schedule-free",
        "ScheduleFreeAdamW",
        STEP,
        lambda: compiled(optimizers.ScheduleFreeAdamW(0.02, warmup_steps=3), layers.Dropout(0.2)),
    ),
    Case("mixed-precision-loss-scale", "LossScaleOptimizer", EPOCH, models.mixed_precision),
    Case("averaged-weights-swapped", "SGD", VALIDATION, models.averaged, calls.swapping),
    Case("two-optimizers", "Adam", EPOCH, models.gan),
    Case("eager-own-step", "Adam", VALIDATION, models.annealed),
    Case(
        "steps-per-execution",
        "Adam",
        VALIDATION,
        lambda: compiled(optimizers.Adam(0.02), layers.Dropout(0.3), steps_per_execution=2),
        calls.per_batch,
    ),
    Case("tracked-generator", "SGD", EPOCH, models.drawing, tracked=models.tracked),
    Case(
        "every-callback-of-keras",
        "AdamW",
        VALIDATION,
        lambda: compiled(
            optimizers.AdamW(0.02, amsgrad=True, global_clipnorm=0.5),
            layers.BatchNormalization(),
            metrics=["accuracy"],
        ),
        calls.every_one_of_keras,
    ),
    Case(
        "plain-values-and-shared",
        "SGD",
        STEP,
        lambda: compiled(optimizers.SGD(0.1)),
        lambda: [*calls.collectors(), *calls.sharing()],
    ),
    Case("every-optimizer", "MultiOptimizer", EPOCH, models.every_optimizer),
    Case(
        "every-random-layer",
        "SGD",
        STEP,
        models.every_random_layer,
        calls.scheduled,
        data=models.weighted_data,
    ),
    Case(
        "eager-operations",
        "SGD",
        STEP,
        lambda: compiled(optimizers.SGD(0.05)),
        lambda: [calls.Adds(lambda: drawn(TOGETHER))],
    ),
    Case("draws-in-graphs", "SGD", EPOCH, draws_in_graphs, lambda: [calls.DrawsLate()]),
    Case(
        "unseeded-generators",
        "SGD",
        STEP,
        lambda: compiled(optimizers.SGD(0.05)),
        lambda: [calls.Adds(lambda: sum(draw() for draw in UNSEEDED.values()))],
    ),
    Case(
        "global-generator-replaced",
        "SGD",
        STEP,
        lambda: compiled(optimizers.SGD(0.05), models.GlobalNoise()),
        lambda: [calls.ReplacesGenerators()],
    ),
    Case("texts", "Adam", STEP, texts.classifier, data=texts.data),
    Case(
        "texts-looked-up", "Adam", VALIDATION, lambda: texts.classifier("lookup"), data=texts.data
    ),
    Case("texts-ragged", "Adam", EPOCH, lambda: texts.classifier("ragged"), data=texts.words),
    Case("attention-shared-layer", "AdamW", VALIDATION, models.attentive),
    Case("compiled-by-xla", "SGD", EPOCH, models.by_xla),
    Case("averages-left-in-the-model", "SGD", EPOCH, models.averaged, calls.left_swapped),
]

ON_REQUEST = {
    *("attention-shared-layer", "compiled-by-xla", "averages-left-in-the-model"),
    *("texts", "texts-looked-up", "texts-ragged"),
    *("schedule-free", "every-optimizer", "averaged-weights-swapped", "every-random-layer"),
    *("draws-in-graphs", "global-generator-replaced", "steps-per-execution"),
}
"""They have no state of a kind that the others have not, or that tests of its own capture and restore."""

ON_ITS_WAY = {
    *("every-optimizer", "every-random-layer", "schedule-free"),
    *("mixed-precision-loss-scale", "two-optimizers"),
}
"""What takes longest to trace and writes no files; each of the other cases by default is stopped."""


@dataclass
class Stopper(Watcher):
    """Stops at ``(where, which)``: a step, an epoch's end, or inside an epoch's validation."""

    where: tuple[str, int] | None = None
    asked: int = 0
    at: Position = field(default_factory=Position)
    ended: int = -1

    @property
    def on_its_way(self):
        """The checkpoint that was taken before the last one."""
        taken, _last = self.kept
        return taken

    def steps_done(self, position):
        super().steps_done(position)
        self.at, self.asked = position, 0

    def epoch_ended(self, record, step, seconds):
        super().epoch_ended(record, step, seconds)
        self.ended = record.epoch

    def stop_requested(self):
        if self.where is None:
            return False
        self.asked += 1
        kind, which = self.where
        if kind == "step":
            return self.at.step >= which
        if kind == "epoch":
            return self.ended == which
        # The first question after an epoch's last step comes before its validation.
        return self.at.epoch == which and self.at.step_in_epoch == STEPS and self.asked > 1


def outcome(case, stops, directory):
    """Everything that a training leaves behind, stopped at each of ``stops`` on its way."""
    for stop in stops:
        go_on(case, directory, stop)
    return go_on(case, directory)


def go_on(case, directory, stop=None, left_out=None):
    """Train in fresh objects from the newest checkpoint, and tell what is there then."""
    watcher = Stopper(directory, block=1, where=stop, stop_at=-1)
    return trained(case, watcher, directory, left_out)


def trained(case, watcher, directory, left_out=None):
    keras.backend.clear_session(free_memory=False)
    planned = case.plan()
    loaded = load_newest([directory], pytest.fail)
    if left_out:
        assert loaded is not None
        loaded = without_component(loaded, left_out)
    loop = train(planned, watcher, loaded)
    close_files(planned)
    assert watcher.last is not None
    if watcher.where is not None:
        check_stop(watcher.where, watcher.last.state["position"])
    model = planned.model
    assert type(model.optimizer).__name__ == case.optimizer
    last = watcher.last
    return {
        "state": json.loads(last.state_json),
        "weights": [v.numpy().tobytes() for v in model.variables],
        "history": loop.history.history,
        "files": {str(p): content(p) for p in sorted(Path().rglob("*")) if p.is_file()},
        **{name: np.asarray(value).tobytes() for name, value in last.tensors.items()},
    }


def close_files(planned):
    """What the end of a process does for a training that was stopped."""
    for callback in planned.callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.csv_file.close()


def check_stop(stop, position):
    at = (position["step"], position["epoch"], position["step_in_epoch"])
    kind, which = stop
    expected = {
        "step": (which, 0, which),
        "epoch": (STEPS * (which + 1), which + 1, 0),
        "validation": (STEPS * (which + 1), which, STEPS),
    }[kind]
    assert at == expected


def content(path):
    """What is in a file that a callback wrote; of a model, without the date and Python's ids."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name != "metadata.json"]
            return {
                name: re.sub(rb'"shared_object_id": \d+', b"", archive.read(name)) for name in names
            }
    return path.read_bytes()


def differing(a, b):
    """Where two outcomes differ: the paths, and both values where they are short."""
    found = []
    for name in sorted({*a, *b}, key=str):
        one, other = a.get(name), b.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += [f"{name}/{inside}" for inside in differing(one, other)]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pairs = [dict(enumerate(map(str, each))) for each in (one, other)]
            if one != other:
                found += [f"{name}/{inside}" for inside in differing(*pairs)]
        elif one != other:
            found.append(f"{name}: {one!r:.300} != {other!r:.300}")
    return found


def named(case):
    return f"{case.optimizer}-{case.name}"


@dataclass(frozen=True)
class Prepared:
    """Of one case: what it leaves without a stop, and where it was when it was stopped."""

    whole: dict[str, Any]
    stopped: Path

    def resumed(self, case, directory, left_out=None):
        """What it leaves when a copy of what was stopped goes on."""
        shutil.copytree(self.stopped, directory, dirs_exist_ok=True)
        with chdir(directory / "files"):
            return go_on(case, directory / "checkpoints", left_out=left_out)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Trains a case whole, and to its stop if it is stopped; once, whoever asks."""

    @cache
    def of(case):
        whole, stopped = (tmp_path_factory.mktemp(each) for each in ("whole", "stopped"))
        if case.name in ON_ITS_WAY:
            with in_files_of(whole):
                watcher = Stopper(whole / "checkpoints", passes(case.stop), block=1)
                expected = trained(case, watcher, whole / "checkpoints")
                assert not list(Path().iterdir()), "files would have to be as they were on its way"
            with in_files_of(stopped):
                taken = watcher.on_its_way
                check_stop(case.stop, load_checkpoint(taken).state["position"])
                shutil.copytree(taken, stopped / "checkpoints" / taken.name)
            return Prepared(expected, stopped)
        with in_files_of(whole):
            expected = go_on(case, whole / "checkpoints")
        with in_files_of(stopped):
            go_on(case, stopped / "checkpoints", case.stop)
        return Prepared(expected, stopped)

    return of


def in_files_of(directory):
    """Where a training's callbacks write, which is not where its checkpoints are."""
    (directory / "files").mkdir()
    return chdir(directory / "files")


def passes(stop):
    """Whether a training is where ``stop`` would stop it; inside a validation none can be taken."""
    kind, which = stop
    assert kind != "validation"
    if kind == "step":
        return lambda position: position.step == which
    return lambda position: (position.epoch, position.step_in_epoch) == (which + 1, 0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=named(case), marks=pytest.mark.whole if case.name in ON_REQUEST else ()
        )
        for case in CASES
    ],
)
def test_a_training_that_was_stopped_ends_as_if_it_never_was(case, prepared, tmp_path):
    before = prepared(case)
    assert differing(before.whole, before.resumed(case, tmp_path)) == []


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_training_stopped_at_three_steps_ends_as_if_it_never_was(case, prepared, tmp_path):
    with in_files_of(tmp_path):
        stopped = outcome(case, STOPS, tmp_path / "checkpoints")
    assert differing(prepared(case).whole, stopped) == []


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        pytest.param(name, left_out, marks=pytest.mark.whole if name in ON_REQUEST else ())
        for name, left_out in (
            ("two-optimizers", "optimizers"),
            ("two-optimizers", "reachable"),
            ("eager-own-step", "user_state"),
            ("tracked-generator", "user_state"),
            ("steps-per-execution", "user_state"),
            ("eager-operations", "eager_operations"),
            ("draws-in-graphs", "eager_operations"),
            ("unseeded-generators", "fresh_entropy"),
            ("global-generator-replaced", "global_seed_generator"),
        )
    ],
)
def test_the_suite_notices_what_is_left_out(name, left_out, prepared, tmp_path, monkeypatch):
    """Negative control: the same comparison fails without one component."""
    (case,) = [case for case in CASES if case.name == name]
    before = prepared(case)
    leave_out(monkeypatch, left_out)
    resumed = before.resumed(case, tmp_path, left_out)
    # What the component itself would have put into the last snapshot is not what differs.
    kept = {"weights": resumed["weights"], "history": resumed["history"]}
    assert differing({name: before.whole[name] for name in kept}, kept) != []


def test_the_suite_has_every_optimizer_of_keras():
    members = vars(keras.optimizers).values()
    known = {
        cls.__name__
        for cls in members
        if isinstance(cls, type) and issubclass(cls, optimizers.Optimizer)
    } - {"Optimizer"}
    inner = {type(each).__name__ for each in models.every_optimizer().optimizer.optimizers}
    assert known == {case.optimizer for case in CASES} | inner
    assert {case.name for case in CASES} >= ON_REQUEST | ON_ITS_WAY
