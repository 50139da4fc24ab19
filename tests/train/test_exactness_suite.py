"""Whatever a training carries, it ends the same when it is stopped on its way.

Each case is trained once without a stop, and once stopped, going on in fresh objects: in the middle of
an epoch, at an epoch's end or inside a validation; with ``-m whole`` at all three in turn. What takes
longest to trace goes on from a checkpoint that the training without a stop takes on its way. Everything
is compared: the whole last snapshot, the weights after the end, the history, and the files that
callbacks wrote. Rows whose models are subjects of other tests too take them from these tests' files.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import exactness_callbacks as calls
import exactness_models as models
import keras
import numpy as np
import pytest
import steps as of_steps
import test_data_trains as sources
import test_replicas_resume as replicas
import test_text_data as texts
import test_vector_metrics as vectors
from exactness_models import compiled
from keras import layers, optimizers
from replicated import each_replica, under
from test_eager_seeds import TOGETHER, drawn
from test_fresh_entropy import UNSEEDED
from test_graph_generators import DRAWS, Noise
from trainings import (
    Watcher,
    dropping,
    equal,
    leave_out,
    plan,
    resumed,
    small_data,
    train,
    unvalidated,
    weights,
    without_component,
)

from sweeper import Data, TrainingStep
from sweeper.checkpoint.reading import load_checkpoint, load_newest
from sweeper.checkpoint.store import CheckpointStore
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.state import callbacks as state_callbacks
from sweeper.train.state import state as state_module
from sweeper.train.state import variables as state_variables
from sweeper.train.state.state import Position

STEP, EPOCH, VALIDATION = STOPS = [("step", 2), ("epoch", 0), ("validation", 1)]
"""With two steps an execution, a step that ends one."""

MANY = 1 << 30


def at(*steps):
    return tuple(("step", step) for step in steps)


@dataclass(frozen=True)
class Case:
    """One combination.

    Attributes:
        optimizer: The class of the model's own.
        stop: Where it is stopped; ``("end", n)``: trained to its end, of n epochs.
        then: Where it is stopped again, each time going on in fresh objects.
        in_turn: Lists of stops for the nightly tier.
        block: How many steps are taken at once where nothing is due.
        made_late: Prefix of attributes that a first batch makes, so that they have changed only where
            training began; what they hold is compared.
    """

    name: str
    optimizer: str
    stop: tuple[str, int]
    model: Callable[[], keras.Model]
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple
    data: Callable[[], Data] = models.data
    tracked: Callable[[], Mapping[str, Any]] = dict
    step: Callable[[], TrainingStep] | None = None
    epochs: int = 3
    then: tuple[tuple[str, int], ...] = ()
    in_turn: tuple[tuple[tuple[str, int], ...], ...] = (tuple(STOPS),)
    block: int = 1
    made_late: str | None = None

    def plan(self, epochs=None):
        return plan(
            model=self.model,
            data=self.data,
            callbacks=self.callbacks,
            epochs=epochs or self.epochs,
            tracked=self.tracked,
            step=self.step,
        )


def draws_in_graphs():
    return compiled(optimizers.SGD(0.05), first=[Noise(tuple(DRAWS))])


def in_blocks(name, optimizer, stop, model, callbacks=tuple, **options):
    """A case whose steps are taken many at once, as far as its stops and callbacks allow."""
    given = {"in_turn": (), **options, "block": MANY}
    return Case(name, optimizer, ("step", stop), model, callbacks, **given)


def extended(name, optimizer, model, callbacks=tuple, **options):
    """A case that ends after two epochs, and goes on past this end."""
    given = {"data": models.unvalidated, "epochs": 4, "in_turn": (), **options, "block": MANY}
    return Case(name, optimizer, ("end", 2), model, callbacks, **given)


def averaged(name, callbacks, **options):
    """The same of averages, which are exchanged with the weights for a validation."""
    return extended(name, "Nadam", models.nadam_averaged, callbacks, data=models.data, **options)


def of_step(name, optimizer, stop, model, step, **options):
    """A case with a training step of parts."""
    given = {"data": small_data, "epochs": 2, **options}
    return in_blocks(f"step-{name}", optimizer, stop, model, step=step, **given)


def of_components(data, how):
    """A case whose every component of the state acts on how it ends."""
    model, epochs = {"eager": (models.noisy_eager, 2), "graph": (models.noisy, 4)}[how]
    options = {"data": data, "tracked": models.tracked_anew, "epochs": epochs}
    name = f"components-{data.__name__}-{how}"
    return in_blocks(name, "SGD", 5, model, calls.watchful, **options)


def of_batches(form, how):
    """A case with sparse or ragged batches."""
    return in_blocks(
        f"{form}-{how}",
        "SGD",
        7,
        lambda: sources.model_on(form, eager=how == "eager"),
        data=lambda: sources.data_in(form),
    )


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
    in_blocks(
        "every-step",
        "SGD",
        1,
        models.noisy,
        calls.watchful,
        data=small_data,
        tracked=models.tracked_anew,
        epochs=4,
        in_turn=(at(1, 7, 17), at(2, 3, 7, 12, 19, 21, 26), *map(at, (6, 7, 10, 14, 27))),
    ),
    *(of_components(data, how) for data in models.STATEFUL for how in ("eager", "graph")),
    *(
        in_blocks(kind, "SGD", 8, sources.small, data=kinds)
        for kind, kinds in sources.KINDS.items()
    ),
    Case(
        "PyDataset-in-validation",
        "SGD",
        ("validation", 0),
        sources.small,
        data=sources.KINDS["PyDataset"],
        in_turn=(),
    ),
    *(
        in_blocks(
            f"parts-of-one-shuffle{freq}",
            "SGD",
            1,
            sources.small,
            data=sources.parts_of_one_shuffle(validation_freq=freq),
            epochs=4,
            in_turn=(at(8), at(14), at(4, 7)),
        )
        for freq in (1, 2)
    ),
    *(of_batches(form, how) for form in sources.FORMS for how in ("eager", "graph")),
    of_step("two-networks", "NoneType", 10, of_steps.maker, of_steps.GanStep, in_turn=(at(3, 10),)),
    of_step(
        "eager",
        "SGD",
        3,
        of_steps.regularized,
        of_steps.eager,
        data=unvalidated,
        epochs=1,
        in_turn=(at(3, 5),),
    ),
    of_step("defaults", "RMSprop", 3, of_steps.uncompiled, of_steps.default, then=at(10)),
    of_step("noise", "SGD", 3, of_steps.regularized, of_steps.NoisyStep, then=at(10)),
    of_step("groups", "RMSprop", 3, of_steps.uncompiled, of_steps.GroupsStep, then=at(10)),
    of_step("accumulating", "Adam", 3, of_steps.uncompiled, of_steps.accumulating, then=at(10)),
    # Step 6 is the last of an epoch: its logs are all that the epoch's end has.
    in_blocks(
        "vectors",
        "SGD",
        2,
        vectors.classifier,
        data=vectors.data,
        then=at(6),
        in_turn=(at(2, 6, 9, 12),),
    ),
    in_blocks(
        "vectors-eager",
        "SGD",
        2,
        vectors.eager,
        data=vectors.data,
        then=at(6, 9, 12),
        made_late="state/user_state/changed/model.compile(metrics=…)[0]/set/",
    ),
    in_blocks(
        "vectors-of-its-own-step",
        "SGD",
        6,
        vectors.reporting,
        data=vectors.unvalidated,
        in_turn=(at(2, 6, 9, 12),),
    ),
    in_blocks(
        "replicated",
        "SGD",
        4,
        under(replicas.drifting, replicas.strategy),
        replicas.callbacks,
        data=replicas.data,
        then=at(10),
        in_turn=(at(1), at(7), at(10), at(3, 9, 17)),
    ),
    in_blocks(
        "replicated-eager",
        "SGD",
        2,
        under(lambda: dropping(run_eagerly=True)),
        data=lambda: small_data(batch_size=26, validation=None),
        epochs=2,
        in_turn=(at(2, 5),),
    ),
    extended(
        "extended-early-stopping",
        "SGD",
        lambda: compiled(optimizers.SGD(0.05, 0.9, nesterov=True), layers.Dropout(0.3)),
        calls.worst_first,
    ),
    extended(
        "extended-centred-noise",
        "RMSprop",
        lambda: compiled(optimizers.RMSprop(0.01, centered=True), layers.GaussianNoise(0.1)),
    ),
    extended(
        "extended-amsgrad-averages",
        "Adam",
        lambda: compiled(
            optimizers.Adam(0.02, amsgrad=True, use_ema=True, ema_momentum=0.8),
            layers.BatchNormalization(),
        ),
    ),
    extended(
        "extended-clipped-accumulating",
        "AdamW",
        lambda: compiled(
            optimizers.AdamW(0.02, clipnorm=0.5, gradient_accumulation_steps=3),
            layers.Dropout(0.2),
        ),
    ),
    averaged("extended-swapped", calls.swapping),
    averaged("extended-left", calls.left_and_reduced),
]

CASE = {case.name: case for case in CASES}

ENDS_CHANGED = {
    *("extended-early-stopping", "extended-amsgrad-averages"),
    *("extended-swapped", "extended-left"),
}
"""Where the end of training changes the model once more, after its last checkpoint."""

ON_REQUEST = {
    *("attention-shared-layer", "compiled-by-xla", "averages-left-in-the-model"),
    *("texts", "texts-looked-up", "texts-ragged"),
    *("schedule-free", "every-optimizer", "averaged-weights-swapped", "every-random-layer"),
    *("draws-in-graphs", "global-generator-replaced", "steps-per-execution"),
    "every-step",
    *(f"components-{data.__name__}-graph" for data in models.STATEFUL),
    *("parts-of-one-shuffle1", "parts-of-one-shuffle2"),
    *({f"{form}-{how}" for form in sources.FORMS for how in ("eager", "graph")} - {"scipy-eager"}),
    *("step-defaults", "step-noise", "step-groups", "step-accumulating", "vectors-eager"),
    *("extended-centred-noise", "extended-amsgrad-averages", "extended-clipped-accumulating"),
    *("extended-swapped", "extended-left"),
}
"""They have no state of a kind that the others have not, or that tests of its own capture and restore."""

ON_ITS_WAY = {
    *("every-optimizer", "every-random-layer", "schedule-free"),
    *("mixed-precision-loss-scale", "two-optimizers"),
    *(case.name for case in CASES if case.block == MANY and case.stop[0] == "step"),
} - {"vectors-of-its-own-step"}
"""What takes longest to trace and writes no files; each of the other cases by default is stopped."""


@dataclass
class Stopper(Watcher):
    """Stops at ``(where, which)``: a step, an epoch's end, or inside an epoch's validation."""

    where: tuple[str, int] | None = None
    asked: int = 0
    at: Position = field(default_factory=Position)
    ended: int = -1
    steps: int | None = None

    @property
    def on_its_way(self):
        """The checkpoint that was taken before the last one."""
        taken, _last = self.kept
        return taken

    def started(self, position, steps_per_epoch):
        super().started(position, steps_per_epoch)
        self.steps = steps_per_epoch

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
        if kind == "end":
            return False
        # The first question after an epoch's last step comes before its validation.
        return self.at.epoch == which and self.at.step_in_epoch == self.steps and self.asked > 1


def outcome(case, stops, directory):
    """Everything that a training leaves behind, stopped at each of ``stops`` on its way."""
    for stop in stops:
        go_on(case, directory, stop)
    return go_on(case, directory)


def go_on(case, directory, stop=None, left_out=None):
    """Train in fresh objects from the newest checkpoint, and tell what is there then."""
    stop_at = stop[1] if stop and stop[0] == "step" else -1
    watcher = Stopper(directory, block=case.block, where=stop, stop_at=stop_at)
    return trained(case, watcher, directory, left_out)


def trained(case, watcher, directory, left_out=None):
    assert Path.cwd().name == "files", "in `in_files_of`: what callbacks write is compared"
    keras.backend.clear_session(free_memory=False)
    kind, which = watcher.where or ("", None)
    planned = case.plan(which if kind == "end" else None)
    loaded = load_newest([directory], pytest.fail)
    if left_out:
        assert loaded is not None
        loaded = left_out(loaded)
    loop = train(planned, watcher, loaded)
    close_files(planned)
    assert watcher.last is not None
    if watcher.where is not None:
        check_stop(watcher.where, watcher.last.state["position"], watcher.steps)
    model = planned.model
    assert type(model.optimizer).__name__ == case.optimizer
    last = watcher.last
    return {
        "state": json.loads(last.state_json),
        "weights": [value.tobytes() for value in each_replica(model)],
        "history": {name: list(map(plain, them)) for name, them in loop.history.history.items()},
        "epochs": [loop.history.epoch, loop.epochs],
        "logs": {name: plain(value) for name, value in (loop._position.logs or {}).items()},
        "files": {str(p): content(p) for p in sorted(Path().rglob("*")) if p.is_file()},
        **{name: np.asarray(value).tobytes() for name, value in last.tensors.items()},
    }


def plain(value):
    """What can be compared: the type, dtype and bits."""
    return type(value).__name__, np.asarray(value).dtype.str, np.asarray(value).tolist()


def close_files(planned):
    """What the end of a process does for a training that was stopped."""
    for callback in planned.callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.csv_file.close()


def check_stop(stop, position, steps):
    kind, which = stop
    if kind == "step":
        assert position["step"] == which
        assert position["step_in_epoch"] > 0
        return
    expected = {
        "epoch": (steps * (which + 1), which + 1, 0),
        "validation": (steps * (which + 1), which, steps),
        "end": (steps * which, which, 0),
    }[kind]
    assert (position["step"], position["epoch"], position["step_in_epoch"]) == expected


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


def end_apart(a, b):
    """Whether weights or histories differ; what a component puts into the last snapshot is not asked."""
    kept = ("weights", "history")
    return differing({name: a[name] for name in kept}, {name: b[name] for name in kept}) != []


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
            if left_out is None:
                for stop in case.then:
                    go_on(case, directory / "checkpoints", stop)
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
                check_stop(case.stop, load_checkpoint(taken).state["position"], watcher.steps)
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


def marked(name, *values):
    marks = pytest.mark.whole if name in ON_REQUEST else ()
    return pytest.param(*values, id="-".join(map(identified, values)), marks=marks)


def identified(value):
    return named(value) if isinstance(value, Case) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize("case", [marked(case.name, case) for case in CASES])
def test_a_training_that_was_stopped_ends_as_if_it_never_was(case, prepared, tmp_path):
    before = prepared(case)
    found = differing(before.whole, before.resumed(case, tmp_path))
    assert [each for each in found if not each.startswith(case.made_late or "\0")] == []


@pytest.mark.whole
@pytest.mark.parametrize(
    ("case", "stops"), [(case, stops) for case in CASES for stops in case.in_turn], ids=identified
)
def test_a_training_stopped_many_times_ends_as_if_it_never_was(case, stops, prepared, tmp_path):
    with in_files_of(tmp_path):
        stopped = outcome(case, stops, tmp_path / "checkpoints")
    assert differing(prepared(case).whole, stopped) == []


@pytest.mark.whole
def test_snapshots_at_every_step_perturb_nothing(prepared, tmp_path):
    case = CASE["every-step"]
    watcher = Stopper(tmp_path / "checkpoints", lambda _position: True)
    with in_files_of(tmp_path):
        snapped = trained(case, watcher, tmp_path / "checkpoints")
    assert differing(prepared(case).whole, snapped) == []
    assert len(watcher.kept) == 28, "one at each of 28 steps, an epoch's last after its validation"


# Negative controls: what is left out is a component, or a function that leaves it out.


def seeds_of_layers(patch, loaded):
    """Restore all variables of a model but those of its layers' seed generators."""
    restore = state_module.Variables.restore

    def without(self, saved, tensors):
        if self.name != "model":
            restore(self, saved, tensors)
            return
        variables = [v for v in self._variables() if "seed" in v.path]
        assert variables
        begun = [v.numpy() for v in variables]
        restore(self, saved, tensors)
        for variable, value in zip(variables, begun, strict=True):
            assert not np.array_equal(variable.numpy(), value)
            variable.assign(value)

    patch.setattr(state_module.Variables, "restore", without)
    return loaded


def last_digits_of_vectors(patch, loaded):
    decode = state_module.decode

    def rounded(node, tensors):
        logs = decode(node, tensors)
        for name, value in (logs or {}).items():
            logs[name] = value.astype("float16") if isinstance(value, np.ndarray) else value
        return logs

    patch.setattr(state_module, "decode", rounded)
    return loaded


def values_of_the_second_replica(patch, loaded):
    first = {name: t for name, t in loaded.tensors.items() if not name.endswith("/replica-1")}
    assert len(first) < len(loaded.tensors)
    return replace(loaded, tensors=first)


COMPONENTS = [
    "parts",
    "data",
    "reopening",
    "model",
    "optimizer",
    "optimizers",
    "metrics",
    "reachable",
    "user_state",
    "global_seed_generator",
    "python_random",
    "numpy_random",
    "tensorflow_random",
    "history",
    "callbacks",
    "fresh_entropy",
    "eager_operations",
]
"""The control of the first is in ``test_resume_is_exact.py``."""

HOLDERS = {"data": "shuffling_itself", "reopening": "drawing_anew"}
"""What has a state that arrays have not."""

LEFT_OUT = [
    ("two-optimizers", "optimizers"),
    ("two-optimizers", "reachable"),
    ("eager-own-step", "user_state"),
    ("tracked-generator", "user_state"),
    ("steps-per-execution", "user_state"),
    ("eager-operations", "eager_operations"),
    ("draws-in-graphs", "eager_operations"),
    ("unseeded-generators", "fresh_entropy"),
    ("global-generator-replaced", "global_seed_generator"),
    *(
        (f"components-{HOLDERS.get(left_out, 'in_few_batches')}-{how}", left_out)
        for how in ("eager", "graph")
        for left_out in (*COMPONENTS[1:], seeds_of_layers)
    ),
    ("PyDataset", "user_state"),
    ("tf.data, going on", "data"),
    ("vectors-of-its-own-step", last_digits_of_vectors),
    ("replicated", values_of_the_second_replica),
]


@pytest.mark.parametrize(
    ("name", "left_out"), [marked(name, name, what) for name, what in LEFT_OUT]
)
def test_the_suite_notices_what_is_left_out(name, left_out, prepared, tmp_path, monkeypatch):
    """Negative control: the same comparison fails without one component."""
    case = CASE[name]
    before = prepared(case)

    def without(loaded):
        if callable(left_out):
            return left_out(monkeypatch, loaded)
        leave_out(monkeypatch, left_out)
        return without_component(loaded, left_out)

    assert end_apart(before.whole, before.resumed(case, tmp_path, without))


def test_every_component_has_its_negative_control():
    case = CASE["components-in_few_batches-eager"]
    loop = TrainingLoop(case.plan(), Watcher())
    assert [c.name for c in loop._state.components] == COMPONENTS


ENDED = [case for case in CASES if case.name.startswith("extended")]


@pytest.mark.parametrize("case", [marked(case.name, case) for case in ENDED])
def test_control_more_epochs_from_what_the_end_of_training_left_are_others(
    case, prepared, tmp_path
):
    first = Watcher(tmp_path / "first")
    ended = train(case.plan(2), first)
    after = CheckpointStore(tmp_path / "after").commit(ended._snapshot())
    assert (after.digest != first.digest) == (case.name in ENDS_CHANGED)
    if case.name in ENDS_CHANGED:
        with in_files_of(tmp_path):
            ended = go_on(case, tmp_path / "after")
        assert end_apart(prepared(case).whole, ended)


@pytest.mark.whole
def test_averages_left_in_the_model_end_it_after_a_resume_from_its_last_checkpoint(tmp_path):
    case = CASE["extended-left"]
    ended, again = (resumed(lambda: case.plan(2), tmp_path)._plan.model for _ in range(2))
    assert equal(weights(again), weights(ended))


def what_the_step_leads_to(patch):
    """Begin the walk not at the step, which then loses its optimizers and weights."""
    patch.setattr(state_module, "Reach", lambda model, step: state_variables.Reach(model))
    patch.setattr(state_module.UserState, "_capture", lambda *given: {"changed": {}})


def weights_that_averages_overwrite(patch):
    patch.setattr(state_callbacks, "_NEVER", 2)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("step-two-networks", what_the_step_leads_to),
        ("extended-left", weights_that_averages_overwrite),
    ],
    ids=identified,
)
def test_the_suite_notices_what_no_checkpoint_has(name, lost, prepared, tmp_path, monkeypatch):
    case = CASE[name]
    whole = prepared(case).whole
    lost(monkeypatch)
    with in_files_of(tmp_path):
        go_on(case, tmp_path / "checkpoints", case.stop)
        ended = go_on(case, tmp_path / "checkpoints")
    assert end_apart(whole, ended)


def test_the_suite_has_every_optimizer_of_keras():
    members = vars(keras.optimizers).values()
    known = {
        cls.__name__
        for cls in members
        if isinstance(cls, type) and issubclass(cls, optimizers.Optimizer)
    } - {"Optimizer"}
    inner = {type(each).__name__ for each in models.every_optimizer().optimizer.optimizers}
    assert known == {case.optimizer for case in CASES} - {"NoneType"} | inner
    assert CASE.keys() >= ON_REQUEST | ON_ITS_WAY | ENDS_CHANGED
    assert len(CASE) == len(CASES)
