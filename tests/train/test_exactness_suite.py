"""Whatever a training carries, it ends the same when it is stopped on its way.

Each case is trained once without a stop by `sweeper.fit`, and then goes on in fresh objects, whose weights
are drawn by another seed: from a checkpoint of that training, from one that a request to stop took inside a
validation or after an epoch's last step, or past its end; with ``-m whole`` at several stops in turn.
Everything is compared: the last checkpoint, the weights after the end, the history, and the files that
callbacks wrote. Rows whose models are subjects of other tests too take them from these tests' files.
"""

import re
import shutil
import signal
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import cache, partial
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
from generate_what_is_captured import COMPONENTS
from keras import layers, optimizers
from replicated import each_replica, under
from test_fresh_entropy import UNSEEDED
from test_random_operations import IN_GRAPHS, Noise, drawn_eagerly
from trainings import dropping, small_data, unvalidated

import sweeper
from sweeper import Data, Every, Keep, TrainingStep
from sweeper.checkpoint.reading import load_newest
from sweeper.train import earlier_call
from sweeper.train.loop import loop as loop_module
from sweeper.train.sources import tfdata
from sweeper.train.state import callbacks as state_callbacks
from sweeper.train.state import state as state_module
from sweeper.train.state import variables as state_variables

LAST_STEP = ("last step", 0)
NEXT_LAST_STEP = ("last step", 1)
VALIDATION = ("validation", 1)
END = ("end", 2)
"""Stops besides steps: after the last step of an epoch, inside a validation, and after two epochs."""

EVERY_STEP = Every(steps=1)


@dataclass(frozen=True)
class Case:
    """One combination.

    Attributes:
        stops: Where it is stopped, each time going on in fresh objects.
        in_turn: Lists of stops for the nightly tier.
        blocks: Whether steps are taken many at once after the last stop.
    """

    name: str
    model: Callable[[], keras.Model]
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple
    data: Callable[[], Data] = models.data
    tracked: Callable[[], Mapping[str, Any]] = dict
    step: Callable[[], TrainingStep] | None = None
    epochs: int = 3
    stops: tuple[Any, ...] = (2,)
    in_turn: tuple[tuple[Any, ...], ...] = ()
    blocks: bool = False


class AsksToStop(keras.callbacks.Callback):
    """Has this process asked to stop after the last step of an epoch, or inside its validation."""

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.params["steps"]:
            self.ask("last step")

    def on_test_batch_end(self, batch, logs=None):
        self.ask("validation")

    def ask(self, where):
        if self.stop == (where, len(self.model.history.epoch)):
            signal.raise_signal(signal.SIGTERM)


def one_layer():
    return compiled(optimizers.SGD(0.05))


def draws_in_graphs():
    return compiled(optimizers.SGD(0.05), first=[Noise(tuple(IN_GRAPHS.values()))])


in_blocks = partial(Case, blocks=True)
stepwise = partial(Case, in_turn=((2, 4, VALIDATION),))
extended = partial(in_blocks, data=models.unvalidated, epochs=4, stops=(END,))
averaged = partial(extended, model=models.nadam_averaged, data=models.data)
"""The same of averages, which are exchanged with the weights for a validation."""
of_step = partial(in_blocks, data=small_data, epochs=2, stops=(3, 10))


def of_components(data, mode):
    """A case whose every component of the state acts on how it ends."""
    model, epochs = {"eager": (models.noisy_eager, 2), "graph": (models.noisy, 4)}[mode]
    name = f"components-{data.__name__}-{mode}"
    options = {"tracked": models.tracked_anew, "epochs": epochs, "stops": (5,)}
    return in_blocks(name, model, calls.watchful, data, **options)


def of_batches(form, mode):
    """A case with sparse or ragged batches."""
    model = partial(sources.model_on, form, eager=mode == "eager")
    return in_blocks(f"{form}-{mode}", model, data=partial(sources.data_in, form), stops=(7,))


def parts_of_one_shuffle(validation_freq):
    return in_blocks(
        f"parts-of-one-shuffle{validation_freq}",
        sources.small,
        data=sources.parts_of_one_shuffle(validation_freq=validation_freq),
        epochs=4,
        stops=(5,),
        in_turn=((1,), (8,), (14,), (4, 7)),
    )


BY_DEFAULT = [
    stepwise("mixed-precision-loss-scale", models.mixed_precision, stops=(4,)),
    stepwise("two-optimizers", models.gan, stops=(4,)),
    stepwise("eager-own-step", models.annealed, stops=(VALIDATION,)),
    stepwise(
        "every-callback-of-keras",
        lambda: compiled(
            optimizers.AdamW(0.02, amsgrad=True, global_clipnorm=0.5),
            layers.BatchNormalization(),
            metrics=["accuracy"],
        ),
        calls.every_one_of_keras,
        stops=(VALIDATION,),
    ),
    stepwise("plain-values-and-shared", one_layer, lambda: [*calls.collectors(), *calls.sharing()]),
    stepwise("eager-operations", one_layer, lambda: [calls.Adds(drawn_eagerly)]),
    stepwise(
        "unseeded-generators",
        one_layer,
        lambda: [calls.Adds(lambda: sum(draw() for draw in UNSEEDED.values()))],
    ),
    *(of_components(data, "eager") for data in models.STATEFUL),
    *(
        in_blocks(kind, sources.small, data=kinds, stops=(8,))
        for kind, kinds in sources.KINDS.items()
    ),
    Case(
        "PyDataset-in-validation",
        sources.small,
        data=sources.KINDS["PyDataset"],
        stops=(VALIDATION,),
    ),
    parts_of_one_shuffle(1),
    of_batches("scipy", "eager"),
    of_step(
        "step-two-networks",
        of_steps.maker,
        step=of_steps.GanStep,
        stops=(10,),
        in_turn=((3, 10),),
    ),
    of_step(
        "step-eager",
        of_steps.regularized,
        step=of_steps.eager,
        data=unvalidated,
        epochs=1,
        stops=(3,),
        in_turn=((3, 5),),
    ),
    # The logs of an epoch's last step are all that the epoch's end has.
    Case("vectors", vectors.classifier, data=vectors.data, stops=(2, LAST_STEP)),
    Case(
        "vectors-of-its-own-step",
        vectors.reporting,
        data=vectors.unvalidated,
        stops=(LAST_STEP,),
        in_turn=((2, LAST_STEP, 9, NEXT_LAST_STEP),),
    ),
    in_blocks(
        "replicated",
        under(replicas.drifting, replicas.strategy),
        replicas.callbacks,
        replicas.data,
        stops=(4, 10),
        in_turn=((1,), (7,), (10,), (3, 9, 17)),
    ),
    in_blocks(
        "replicated-eager",
        under(lambda: dropping(run_eagerly=True)),
        data=lambda: small_data(batch_size=26, validation=None),
        epochs=2,
        in_turn=((2, 5),),
    ),
    extended(
        "extended-early-stopping",
        lambda: compiled(optimizers.SGD(0.05, 0.9, nesterov=True), layers.Dropout(0.3)),
        calls.worst_first,
    ),
]

ON_REQUEST = [
    stepwise(
        "schedule-free",
        lambda: compiled(optimizers.ScheduleFreeAdamW(0.02, warmup_steps=3), layers.Dropout(0.2)),
    ),
    stepwise("averaged-weights-swapped", models.averaged, calls.swapping, stops=(VALIDATION,)),
    stepwise(
        "steps-per-execution",
        lambda: compiled(optimizers.Adam(0.02), layers.Dropout(0.3), steps_per_execution=2),
        calls.per_batch,
        stops=(VALIDATION,),
    ),
    stepwise("every-optimizer", models.every_optimizer, stops=(4,)),
    stepwise(
        "every-random-layer", models.every_random_layer, calls.scheduled, models.weighted_data
    ),
    stepwise("draws-in-graphs", draws_in_graphs, lambda: [calls.DrawsLate()], stops=(4,)),
    stepwise(
        "global-generator-replaced",
        lambda: compiled(optimizers.SGD(0.05), models.GlobalNoise()),
        lambda: [calls.ReplacesGenerators()],
    ),
    stepwise("texts", texts.classifier, data=texts.data),
    in_blocks(
        "every-step",
        models.noisy,
        calls.watchful,
        small_data,
        models.tracked_anew,
        epochs=4,
        stops=(1,),
        in_turn=((1, 7, 17), (2, 3, 7, 12, 19, 21, 26), (6,), (7,), (10,), (14,), (27,)),
    ),
    of_step("step-defaults", of_steps.uncompiled, step=of_steps.default),
    of_step("step-noise", of_steps.regularized, step=of_steps.NoisyStep),
    of_step("step-groups", of_steps.uncompiled, step=of_steps.GroupsStep),
    of_step("step-accumulating", of_steps.uncompiled, step=of_steps.accumulating),
    extended(
        "extended-amsgrad-averages",
        lambda: compiled(
            optimizers.Adam(0.02, amsgrad=True, use_ema=True, ema_momentum=0.8),
            layers.BatchNormalization(),
        ),
    ),
    averaged("extended-swapped", callbacks=calls.swapping),
    averaged("extended-left", callbacks=calls.left_and_reduced),
    *(of_components(data, "graph") for data in models.STATEFUL),
    parts_of_one_shuffle(2),
    *(
        of_batches(form, mode)
        for form in sources.FORMS
        for mode in ("eager", "graph")
        if (form, mode) != ("scipy", "eager")
    ),
]
"""They have no state of a kind that the others have not, or that tests of its own capture and restore."""

CASES = [*BY_DEFAULT, *ON_REQUEST]
CASE = {case.name: case for case in CASES}


def go_on(case, directory, *, stop=None, seed=1, every=EVERY_STEP):
    """Train in fresh objects from the newest checkpoint; return everything that is there then."""
    keras.backend.clear_session(free_memory=False)
    keras.config.set_epsilon(1e-7)  # as a process of its own has it
    (directory / "files").mkdir(exist_ok=True)
    checkpoints = directory / "checkpoints"
    with chdir(directory / "files"):
        keras.utils.set_random_seed(seed)
        model = case.model()
        keras.utils.set_random_seed(1)
        callbacks = [*case.callbacks(), *([] if case.blocks else [AsksToStop(stop)])]
        try:
            history = sweeper.fit(
                model,
                case.data(),
                epochs=2 if stop == END else case.epochs,
                checkpoints=checkpoints,
                callbacks=callbacks,
                checkpoint_every=every,
                keep=Keep(last=100),
                tracked=case.tracked(),
                step=case.step and case.step(),
                notice=lambda _notice: None,
            )
        finally:
            for callback in callbacks:
                if isinstance(callback, keras.callbacks.CSVLogger):
                    callback.csv_file.close()  # as the end of a process does
        files = {str(p): content(p) for p in sorted(Path().rglob("*")) if p.is_file()}
    last = load_newest([checkpoints], pytest.fail)
    return {
        "state": last.state,
        "weights": [value.tobytes() for value in each_replica(model)],
        "history": {name: list(map(plain, them)) for name, them in history.history.items()},
        "files": files,
        **{name: np.asarray(value).tobytes() for name, value in last.tensors.items()},
    }


def plain(value):
    """What can be compared: the type, dtype and bits."""
    return type(value).__name__, np.asarray(value).dtype.str, np.asarray(value).tolist()


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
    differences = []
    for name in sorted({*a, *b}, key=str):
        one = a.get(name)
        other = b.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            differences += [f"{name}/{inside}" for inside in differing(one, other)]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pairs = [dict(enumerate(map(str, outcome))) for outcome in (one, other)]
            if one != other:
                differences += [f"{name}/{inside}" for inside in differing(*pairs)]
        elif one != other:
            differences.append(f"{name}: {one!r:.300} != {other!r:.300}")
    return differences


def end_apart(a, b):
    """Whether weights or histories differ; what a component puts into the last snapshot is not asked."""
    names = ("weights", "history")
    return differing({name: a[name] for name in names}, {name: b[name] for name in names}) != []


def stop_at(case, stop, directory, *, trained=True):
    """Have a training stop there, or, if it was trained to its end, its later checkpoints be gone."""
    if stop == END:
        go_on(case, directory, stop=stop)
    elif isinstance(stop, tuple):
        with pytest.raises(sweeper.Interrupted):
            go_on(case, directory, stop=stop)
    else:
        if not trained:
            go_on(case, directory)
        for path in (directory / "checkpoints").glob("step-*"):
            if int(path.name[5:14]) > stop:
                shutil.rmtree(path)
    position = load_newest([directory / "checkpoints"], pytest.fail).state["position"]
    where = position["epoch"], position["step_in_epoch"] > 0
    assert position["step"] == stop or where == (stop[1], stop != END)


def stopped(case, stops, directory, whole):
    """Stop a training at each of ``stops``."""
    if isinstance(stops[0], int):
        shutil.copytree(whole, directory, dirs_exist_ok=True)
    for number, stop in enumerate(stops):
        stop_at(case, stop, directory, trained=number == 0)


def resumed(case, directory):
    return go_on(case, directory, seed=2, every="epoch" if case.blocks else EVERY_STEP)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train a case without a stop, once, whoever asks; return what is there then, and its directory."""

    @cache
    def trained(case):
        directory = tmp_path_factory.mktemp("whole")
        return go_on(case, directory), directory

    return trained


def marked(name, *values):
    marks = pytest.mark.whole if CASE[name] in ON_REQUEST else ()
    return pytest.param(*values, id="-".join(map(identified, values)), marks=marks)


def identified(value):
    return value.name if isinstance(value, Case) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize(
    ("case", "stops"),
    [
        *(marked(case.name, case, case.stops) for case in CASES),
        *(
            pytest.param(case, stops, id=f"{case.name}-{stops}", marks=pytest.mark.whole)
            for case in CASES
            for stops in case.in_turn
        ),
    ],
)
def test_a_training_that_was_stopped_ends_as_if_it_never_was(case, stops, whole, tmp_path):
    expected, directory = whole(case)
    stopped(case, stops, tmp_path, directory)
    assert differing(expected, resumed(case, tmp_path)) == []


# Negative controls: what is left out is a component that is not restored, or a function that loses state.


def not_restored(patch, name):
    default = state_module.default_components

    def components(*arguments, **options):
        all_components = default(*arguments, **options)
        [left_out] = [component for component in all_components if component.name == name]
        left_out.restore = lambda *_: None
        return all_components

    patch.setattr(loop_module, "default_components", components)


def seeds_of_layers(patch):
    """Restore all variables of a model but those of its layers' seed generators."""
    restore = state_module.Variables.restore

    def without(self, saved, tensors):
        variables = [v for v in self._variables() if self.name == "model" and "seed" in v.path]
        values = [v.numpy() for v in variables]
        restore(self, saved, tensors)
        for variable, value in zip(variables, values, strict=True):
            assert not np.array_equal(variable.numpy(), value)
            variable.assign(value)

    patch.setattr(state_module.Variables, "restore", without)


def last_digits_of_vectors(patch):
    decode = state_module.decode

    def rounded(node, tensors):
        logs = decode(node, tensors)
        for name, value in (logs or {}).items():
            logs[name] = value.astype("float16") if isinstance(value, np.ndarray) else value
        return logs

    patch.setattr(state_module, "decode", rounded)


def values_of_the_second_replica(patch):
    restore = state_module.Variables.restore

    def of_the_first(self, saved, tensors):
        first = {name: t for name, t in tensors.items() if not name.endswith("/replica-1")}
        restore(self, saved, first)

    patch.setattr(state_module.Variables, "restore", of_the_first)


def order_of_the_parts(patch):
    patch.setattr(tfdata.PassSeeds, "begin", lambda *_: None)


LEFT_OUT_EACH = [name for name in COMPONENTS if name != "parts"]
"""All but the one that only refuses; that they are all is a test of ``test_captured_page.py``."""

HOLDERS = {"data": "shuffling_itself", "reopening": "drawing_anew"}
"""What has a state that arrays have not."""

LEFT_OUT = [
    ("two-optimizers", "optimizers"),
    ("two-optimizers", "reachable"),
    ("eager-own-step", "user_state"),
    ("steps-per-execution", "user_state"),
    ("eager-operations", "eager_operations"),
    ("draws-in-graphs", "eager_operations"),
    ("unseeded-generators", "fresh_entropy"),
    ("global-generator-replaced", "global_seed_generator"),
    *(
        (f"components-{HOLDERS.get(left_out, 'in_few_batches')}-{mode}", left_out)
        for mode in ("eager", "graph")
        for left_out in (*LEFT_OUT_EACH, seeds_of_layers)
    ),
    ("PyDataset", "user_state"),
    ("tf.data, going on", "data"),
    ("vectors-of-its-own-step", last_digits_of_vectors),
    ("replicated", values_of_the_second_replica),
    ("parts-of-one-shuffle1", order_of_the_parts),
]


@pytest.mark.parametrize(
    ("name", "left_out"), [marked(name, name, left_out) for name, left_out in LEFT_OUT]
)
def test_the_suite_notices_what_is_left_out(name, left_out, whole, tmp_path, monkeypatch):
    """Negative control: the same comparison fails without one component."""
    case = CASE[name]
    expected, directory = whole(case)
    stopped(case, case.stops[:1], tmp_path, directory)
    if callable(left_out):
        left_out(monkeypatch)
    else:
        not_restored(monkeypatch, left_out)
    assert end_apart(expected, resumed(case, tmp_path))


def what_the_step_leads_to(patch):
    """Begin the walk not at the step, which then loses its optimizers and weights."""
    patch.setattr(state_module, "Reach", lambda model, step: state_variables.Reach(model))
    patch.setattr(state_module.UserState, "_capture", lambda *arguments: {"changed": {}})


def weights_that_averages_overwrite(patch):
    patch.setattr(state_callbacks, "_NEVER", 2)


def weights_before_the_end(patch):
    """Have the end of training change the model before its last checkpoint."""
    end_epoch = loop_module.TrainingLoop._end_epoch

    def end_training_as_well(self, epoch, logs):
        record = end_epoch(self, epoch, logs)
        if epoch + 1 == self._plan.epochs == END[1]:
            self._averages.finalize()
            self._plan.model.optimizer.finalize_variable_values(self._trained)
            for callback in self._callbacks.callbacks:
                callback.on_train_end()
        return record

    patch.setattr(loop_module.TrainingLoop, "_end_epoch", end_training_as_well)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        pytest.param("step-two-networks", what_the_step_leads_to, id="step"),
        pytest.param("extended-left", weights_that_averages_overwrite, id="averages"),
        *(
            marked(f"extended-{name}", f"extended-{name}", weights_before_the_end)
            for name in ("early-stopping", "amsgrad-averages", "swapped", "left")
        ),
    ],
)
def test_the_suite_notices_what_no_checkpoint_has(name, lost, whole, tmp_path, monkeypatch):
    case = CASE[name]
    expected, _ = whole(case)
    lost(monkeypatch)
    stop_at(case, case.stops[0], tmp_path, trained=False)
    assert end_apart(expected, resumed(case, tmp_path))


@pytest.mark.whole
def test_averages_left_in_the_model_end_it_after_a_resume_from_its_last_checkpoint(
    tmp_path, monkeypatch
):
    case = replace(CASE["extended-left"], epochs=2)
    ended = go_on(case, tmp_path, seed=1)
    monkeypatch.setattr(earlier_call, "_BEGAN", {})  # as in another process
    assert differing(ended, go_on(case, tmp_path, seed=2)) == []


def test_the_suite_has_every_optimizer_of_keras():
    names = {
        name
        for name, cls in vars(keras.optimizers).items()
        if isinstance(cls, type) and issubclass(cls, optimizers.Optimizer)
    } - {"Optimizer"}
    files = [Path(__file__), Path(models.__file__), Path(of_steps.__file__)]
    named = {
        name for file in files for name in re.findall(r"optimizers\.(\w+)\(", file.read_text())
    }
    assert names <= named
    assert len(CASE) == len(CASES)
