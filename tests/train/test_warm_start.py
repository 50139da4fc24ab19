"""A training that begins from a file: which names fit, every refusal, and that it begins once."""

import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.legacy.saving import legacy_h5_format
from trainings import Watcher, equal, mlp, one_layer, plan, train, unvalidated, weights

from sweeper import WarmStart
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.remote_store import open_store
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError, DefinitionError, WarmStartError
from sweeper.spec.warm_start import checked_warm_start, warm_start_of
from sweeper.support.paths import RunPaths, parse_location
from sweeper.train.state.state import HistoryRecord, Position, TrainingState, default_components
from sweeper.train.userstate import Roots
from sweeper.train.warmstart.initial import match_warm_start
from sweeper.train.warmstart.source import digest_now, locate

Tree = tf.__internal__.tracking.AutoTrackable


def dense_net(name="net"):
    """Three variables under fixed names: l1's kernel and bias, and head's kernel."""

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name=name)
            self.l1 = keras.layers.Dense(3, name="first")
            self.head = keras.layers.Dense(2, name="last", use_bias=False)

        def call(self, x):
            return self.head(self.l1(x))

    model = Net()
    model.compile("sgd", "mse")
    model(np.zeros((1, 2), "float32"))
    return model


def numbers(*shape, begin=0.0):
    return (np.arange(np.prod(shape)) + begin).reshape(shape).astype("float32")


def tree(**children):
    """Objects as Keras 2 and an Estimator's model function had them, by attributes."""
    made = Tree()
    for name, child in children.items():
        below = tree(**child) if isinstance(child, dict) else child
        below = tf.Variable(below) if isinstance(below, np.ndarray) else below
        made._track_trackable(below, name=name.replace("__", "-"))
        made.__dict__[name] = below
    return made


NET = {
    "l1": {"kernel": numbers(2, 3), "bias": numbers(3)},
    "head": {"kernel": numbers(3, 2, begin=50)},
}


def saved(directory, **objects):
    made = {n: tree(**o) if isinstance(o, dict) else o for n, o in objects.items()}
    return Path(tf.train.Checkpoint(**made).save(str(directory / "ckpt")))


def begun(path, model, **options):
    match_warm_start(WarmStart(path, **options), model).assign()
    return [v.numpy() for v in model.variables]


def refused(path, model, *names, **options):
    """Check that the file is refused for the model, with these names, and nothing is assigned."""
    before = weights_of(model)
    with pytest.raises(WarmStartError) as raised:
        match_warm_start(WarmStart(path, **options), model)
    for name in (str(path), *names):
        assert name in str(raised.value), raised.value
    assert equal(weights_of(model), before)


def weights_of(model):
    return [v.numpy() for v in model.variables]


EXPECTED = [NET["l1"]["kernel"], NET["l1"]["bias"], NET["head"]["kernel"]]

# TensorFlow's checkpoints, by others' names


@pytest.mark.parametrize("root", ["net", "model", "anything"])
def test_keras_2s_names_fit_whatever_the_model_was_saved_as(root, tmp_path):
    path = saved(tmp_path, **{root: NET}, step=tf.Variable(7))
    assert equal(begun(path, dense_net()), EXPECTED)


def test_a_keras_2_model_of_layers_in_a_row_fits_by_their_order(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(2, use_bias=False),
        ]
    )
    layers = {
        "layer_with_weights__0": NET["l1"],
        "layer__1": {},
        "layer_with_weights__1": NET["head"],
    }
    found = begun(saved(tmp_path, model=layers), model)
    assert equal([v for v in found if v.dtype == np.float32], EXPECTED)


def test_layers_in_a_list_fit_by_keras_2s_names(tmp_path):
    class Stack(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [keras.layers.Dense(3), keras.layers.Dense(2, use_bias=False)]

        def call(self, x):
            return self.blocks[1](self.blocks[0](x))

    model = Stack()
    model(np.zeros((1, 2), "float32"))
    path = saved(tmp_path, net={"blocks": {"0": NET["l1"], "1": NET["head"]}})
    assert equal(begun(path, model), EXPECTED)
    theirs = tf.train.Checkpoint(net=model).save(str(tmp_path / "own"))
    refused(theirs, model, "is not in it; looked for blocks/0/_kernel")


def test_a_directory_gives_its_latest_checkpoint_and_a_file_of_one_the_whole(tmp_path):
    net = tree(**NET)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(net=net), tmp_path, 3)
    manager.save()
    net.l1.kernel.assign(net.l1.kernel * 2)
    latest = Path(manager.save())
    doubled = [2 * EXPECTED[0], *EXPECTED[1:]]
    for path in (tmp_path, latest, tmp_path / "checkpoint", Path(f"{latest}.index")):
        assert equal(begun(path, dense_net()), doubled)
    assert equal(begun(tmp_path / "ckpt-1", dense_net()), EXPECTED)


def test_two_parts_that_fit_alike_must_be_told_apart(tmp_path):
    other = {**NET, "head": {"kernel": numbers(3, 2, begin=70)}}
    path = saved(tmp_path, generator=NET, discriminator=other)
    refused(path, dense_net(), "model 'net'", "root='discriminator' or root='generator'")
    assert equal(begun(path, dense_net(), root="generator"), EXPECTED)
    refused(path, dense_net(), "has no 'critic'; it has discriminator, generator", root="critic")


def test_a_checkpoint_of_tensorflow_1_is_refused_with_what_it_has(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("dense/kernel", initializer=numbers(2, 3))
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"), global_step=3)
    refused(path, dense_net(), "TensorFlow 1 checkpoint", "dense/kernel", "save_weights")


def test_the_optimizer_of_a_foreign_file_is_refused(tmp_path):
    model = dense_net()
    model.optimizer.build(model.trainable_variables)
    path = saved(tmp_path, net=model, optimizer=model.optimizer)
    refused(path, model, "optimizer=True", "WarmStart.from_trial", optimizer=True)


# Strictness


def test_every_mismatch_is_named_and_nothing_is_assigned(tmp_path):
    net = {
        "l1": {"kernel": numbers(2, 4), "bias": numbers(3).astype("float64")},
        "tail": {"kernel": numbers(3, 2)},
    }
    path = saved(tmp_path, net=net)
    mismatches = (
        "net/first/kernel is float32[2, 3], and float32[2, 4] in it (l1/kernel)",
        "net/first/bias is float32[3], and float64[3] in it (l1/bias)",
        "net/last/kernel is not in it; looked for head/_kernel",
        "tail/kernel (float32[3, 2]) is in it, and not in the model",
        "strict=False",
    )
    refused(path, dense_net(), *mismatches, root="net")
    refused(path, dense_net(), "nothing in the warm start", "net/first", root="net", strict=False)


def test_values_of_a_layer_with_another_name_are_not_taken_for_its_own(tmp_path):
    def two(first, second):
        layers = [keras.Input((2,)), keras.layers.Dense(2, name=first)]
        return keras.Sequential([*layers, keras.layers.Dense(2, name=second)], name="two")

    path = tmp_path / "x.weights.h5"
    two("encoder", "decoder").save_weights(path)
    belongs = "layers/dense/vars/0 in it belongs to the layer 'encoder', and this is 'decoder'"
    refused(path, two("decoder", "encoder"), f"two/decoder/kernel is named differently: {belongs}")
    assert equal(begun(path, two("encoder", "decoder")), begun(path, two("encoder", "decoder")))


# Files of another kind


@pytest.mark.parametrize("whole", [False, True])
def test_weights_in_the_layout_of_keras_2_are_refused_with_advice(whole, tmp_path):
    source, path = one_layer(), tmp_path / "old.h5"
    if whole:
        legacy_h5_format.save_model_to_hdf5(source, str(path))
    else:
        with h5py.File(path, "w") as file:
            legacy_h5_format.save_weights_to_hdf5_group(file, source)
    refused(path, one_layer(), "HDF5 layout of Keras 2", "model.load_weights", "save_weights")


def test_nothing_of_a_keras_file_is_built_or_run(tmp_path):
    source = dense_net()
    source.save(tmp_path / "whole.keras")
    with zipfile.ZipFile(tmp_path / "whole.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["config.json"] = json.dumps({"module": "os", "class_name": "abort"}).encode()
    with zipfile.ZipFile(tmp_path / "evil.keras", "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    assert equal(begun(tmp_path / "evil.keras", dense_net()), weights_of(source))
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as archive:
        archive.writestr("notes.txt", "nothing")
    refused(tmp_path / "other.keras", dense_net(), "notes.txt", "model.weights.h5", "model.save")


def test_a_link_out_of_an_hdf5_file_is_not_followed(tmp_path):
    model = dense_net()
    model.save_weights(tmp_path / "x.weights.h5")
    with h5py.File(tmp_path / "x.weights.h5", "a") as file:
        del file["l1/vars/0"]
        file["l1/vars/0"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/a")
    refused(tmp_path / "x.weights.h5", model, "is not in it; looked for l1/vars/0")


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        (
            "gone.weights.h5",
            "does not exist (the directory has data.h5, empty.h5, exported, notes.txt)",
        ),
        ("away/base.keras", "does not exist (there is no such directory)"),
        ("notes.txt", "begins with b'hello, wo', which is not a known format"),
        ("empty.h5", "is an empty file"),
        ("exported", "is a directory with saved_model.pb"),
        ("exported", "exported/variables/variables"),
        ("data.h5", "is an HDF5 file with pixels; expected Keras weights"),
    ],
)
def test_what_is_no_source_is_refused_with_what_was_seen(name, seen, tmp_path):
    (tmp_path / "notes.txt").write_text("hello, world")
    (tmp_path / "empty.h5").touch()
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/saved_model.pb").touch()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["pixels"] = np.zeros(3)
    refused(tmp_path / name, dense_net(), seen, "expected")


# Models


def test_a_model_whose_variables_a_batch_would_still_make_is_refused(tmp_path):
    path = saved(tmp_path, net=NET)
    unbuilt = keras.Sequential([keras.layers.Dense(3, name="first")], name="late")
    unbuilt.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(WarmStartError, match=r"'late' has no variables yet in 'first'.*build\("):
        match_warm_start(WarmStart(path), unbuilt)


class Begins(keras.callbacks.Callback):
    """Keeps what the model holds when training begins."""

    def on_train_begin(self, logs=None):
        self.seen = [v.numpy() for v in self.model.variables]


def late_mlp():
    """As `mlp`, with variables that only its first batch makes."""

    class Late(keras.Model):
        def __init__(self):
            super().__init__(name="late")
            self.hidden = keras.layers.Dense(4, activation="relu", name="hidden")
            self.norm = keras.layers.BatchNormalization(name="norm")
            self.out = keras.layers.Dense(4, activation="softmax", name="out")

        def call(self, x, training=False):
            return self.out(self.norm(self.hidden(x), training=training))

    model = Late()
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def warm(path, model=late_mlp, **options):
    return replace(plan(model=model, **options), warm_start=WarmStart(path))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Weights of `late_mlp`, trained for an epoch."""
    planned = plan(model=late_mlp, data=unvalidated, epochs=1)
    train(planned, Watcher())
    path = tmp_path_factory.mktemp("first") / "base.weights.h5"
    planned.model.save_weights(path)
    return path


@pytest.fixture
def base(first, tmp_path):
    return Path(shutil.copy(first, tmp_path))


def test_a_fresh_unbuilt_model_is_built_first_and_callbacks_see_the_values(base):
    given = late_mlp()
    given(np.zeros((1, 8), "float32"))
    given.optimizer.build(given.trainable_variables)
    given.load_weights(base)
    callback = Begins()
    planned = warm(base, data=unvalidated, callbacks=lambda: [callback], epochs=1)
    assert not planned.model.built
    train(planned, Watcher())
    assert equal(callback.seen, weights_of(given))


def test_a_resumed_training_ends_alike_and_never_opens_the_file(base, tmp_path):
    whole = warm(base, data=unvalidated)
    train(whole, Watcher())
    cold = plan(model=late_mlp, data=unvalidated)
    train(cold, Watcher())
    assert not equal(weights(cold.model), weights(whole.model))
    watcher = Watcher(tmp_path / "checkpoints", stop_at=9)
    train(warm(base, data=unvalidated), watcher)
    base.unlink()
    resumed = warm(base, data=unvalidated)
    train(resumed, Watcher(), load_checkpoint(watcher.kept[-1]))
    assert equal(weights(resumed.model), weights(whole.model))
    with pytest.raises(WarmStartError, match="does not exist"):
        train(warm(base), Watcher())


def test_what_was_taken_is_said(base):
    said = []
    from sweeper.train.loop.loop import TrainingLoop

    loop = TrainingLoop(warm(base), Watcher(), said.append)
    report = loop.match_warm_start()
    digest = locate(WarmStart(base)).digest()
    assert said == [
        f"begins from {base} (Keras weights, digest {digest[:8]}): 8 of the model's 8 variables"
    ]
    assert report is not None
    assert report.to_json() == {
        "path": str(base),
        "kind": "Keras weights",
        "digest": digest,
        "of": 8,
        "optimizer": 0,
        "matched": {
            "late/hidden/kernel": "hidden/vars/0",
            "late/hidden/bias": "hidden/vars/1",
            "late/norm/gamma": "layers/batch_normalization/vars/0",
            "late/norm/beta": "layers/batch_normalization/vars/1",
            "late/norm/moving_mean": "layers/batch_normalization/vars/2",
            "late/norm/moving_variance": "layers/batch_normalization/vars/3",
            "late/out/kernel": "layers/dense_1/vars/0",
            "late/out/bias": "layers/dense_1/vars/1",
        },
        "mismatches": [],
    }


def test_another_trials_checkpoint_is_found_by_its_finished_epochs(tmp_path):
    trial = tmp_path / "runs/small/trial-00003"
    for attempt, stop in enumerate((8, 16), 1):
        due = {
            8: lambda p: p.step_in_epoch == 0 or p.step == 8,
            16: lambda p: p.step_in_epoch == 0 or p.step == 16,
        }[stop]
        directory = trial / f"attempt-{attempt:02d}/checkpoints"
        train(plan(model=one_layer), Watcher(directory, snapshot_at=due, block=1, stop_at=stop))
    newest = WarmStart.from_trial("small", 3, runs_dir=tmp_path / "runs")
    assert locate(newest).path.name == "step-000000016"
    kept = {p.name: load_checkpoint(p) for p in trial.glob("attempt-*/checkpoints/step-*")}
    ends = {c.epoch: n for n, c in kept.items() if c.state["position"]["step_in_epoch"] == 0}
    assert 0 < len(ends) < len(kept)
    for epoch, name in ends.items():
        assert locate(replace(newest, at=epoch)).path.name == name
    there = ", ".join(map(str, sorted(ends)))
    with pytest.raises(WarmStartError, match=f"after 9 epochs; it has some after {there}"):
        locate(replace(newest, at=9))
    target = plan(model=one_layer, epochs=1).model
    loaded = load_checkpoint(locate(newest).path)
    match_warm_start(newest, target).assign()
    assert target.layers[0].kernel.numpy().tobytes() == loaded.tensors["model/00000"].tobytes()


def test_another_trials_checkpoint_is_taken_from_an_object_store():
    place = "memory://warm-start"
    trial = RunPaths(Path("runs"), "small", parse_location(place))
    store = open_store(trial.checkpoints(3, 1))
    watcher = Watcher(snapshot_at=lambda p: p.step_in_epoch == 0, block=1)
    planned = plan(model=one_layer, epochs=2)
    taken = []
    watcher.keep = taken.append
    train(planned, watcher)
    paths = [store.commit(snapshot).path for snapshot in taken]
    epochs = [snapshot.epoch for snapshot in taken]
    newest = WarmStart.from_trial("small", 3, checkpoints_dir=place)
    assert locate(newest).path == paths[-1]
    first = replace(newest, at=epochs[0])
    assert locate(first).path == paths[0]
    assert locate(first).digest() != locate(newest).digest()
    target = one_layer()
    match_warm_start(first, target).assign()
    wanted = load_checkpoint(paths[0]).tensors["model/00000"]
    assert target.layers[0].kernel.numpy().tobytes() == wanted.tobytes()
    with pytest.raises(WarmStartError, match=f"{place}/small/trial-00004 has no checkpoint"):
        locate(WarmStart.from_trial("small", 4, checkpoints_dir=place))


def test_the_optimizer_is_taken_by_its_slots_and_never_for_another_kind(tmp_path):
    def compiled(optimizer, seed):
        model = dense_net()
        model.compile(optimizer, "mse")
        model.optimizer.build(model.trainable_variables)
        for v in model.optimizer.variables[2:]:
            v.assign(keras.random.normal(v.shape, seed=seed))
        return model

    def kept(model, name):
        history = keras.callbacks.History()
        history.on_train_begin()
        state = TrainingState(default_components(Roots(model, []), HistoryRecord(history)))
        state.begin()
        return CheckpointStore(tmp_path / name).commit(state.capture(Position(), {})).path

    source = compiled(keras.optimizers.SGD(0.5, momentum=0.9), 1)
    path = kept(source, "momentum")
    target = compiled(keras.optimizers.SGD(0.1, momentum=0.9), 2)
    match_warm_start(WarmStart(path, optimizer=True), target).assign()
    assert equal(
        [v.numpy() for v in target.optimizer.variables[2:]],
        [v.numpy() for v in source.optimizer.variables[2:]],
    )
    assert float(target.optimizer.learning_rate.numpy()) == pytest.approx(0.1)
    other = compiled(keras.optimizers.RMSprop(0.1), 2)
    assert [v.shape for v in other.optimizer.variables] == [
        v.shape for v in source.optimizer.variables
    ]
    before = [v.numpy() for v in other.optimizer.variables]
    with pytest.raises(
        WarmStartError, match=r"looked for optimizer variable 2, which is .*momentum"
    ):
        match_warm_start(WarmStart(path, optimizer=True), other)
    assert equal([v.numpy() for v in other.optimizer.variables], before)


# Digests


def test_a_file_that_has_changed_is_refused(base):
    options = WarmStart(base, digest=locate(WarmStart(base)).digest())
    model = late_mlp()
    model(np.zeros((1, 8), "float32"))
    match_warm_start(options, model)
    before = options.digest
    with h5py.File(base, "a") as file:
        file["layers/dense_1/vars/1"][0] += 1
    after = locate(options).digest()
    with pytest.raises(CheckpointError, match=f"{base} .*digest is {after}, expected {before}"):
        match_warm_start(options, model)


def test_a_digest_is_of_the_content_alone(base, tmp_path):
    copy = tmp_path / "copy.weights.h5"
    shutil.copy(base, copy)
    assert locate(WarmStart(copy)).digest() == locate(WarmStart(base)).digest()
    said = []
    assert digest_now(WarmStart(base), said.append) == {str(base): locate(WarmStart(base)).digest()}
    base.unlink()
    assert digest_now(WarmStart(base), said.append) == {}
    assert len(said) == 1
    assert said[0].endswith(
        "This trial began from it and resumes from its own checkpoint; without the file it can "
        "be neither started again nor verified"
    )


# What may be given


def test_what_the_how_to_shows_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/how-to/warm-start.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {"build_model": mlp, "load_data": dict}
    for block in shown:
        exec(block, names)
    assert names["which"].warm_start is names["begin_from"]
    assert "warm_start" in names["which"].factories()


def test_what_is_no_warm_start_is_refused_when_it_is_written():
    assert checked_warm_start("a.keras") == WarmStart("a.keras")
    assert warm_start_of(lambda trial: Path(f"{trial}.keras"), 3) == WarmStart(Path("3.keras"))
    assert warm_start_of(lambda _trial: None, 3) is None
    for wrong in (
        lambda: checked_warm_start(3),
        lambda: WarmStart(""),
        lambda: WarmStart("a", at=-1),
        lambda: WarmStart("a", at="best"),
        lambda: warm_start_of(lambda _trial: 3, None),
    ):
        with pytest.raises(DefinitionError):
            wrong()
