"""A training that begins from a file: which names fit, every refusal, and that it begins once."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import fitted
from keras.src.legacy.saving import legacy_h5_format
from small_models import Runner, regression, without_validation
from trainings import equal, unvalidated

from sweeper import CheckpointError, DefinitionError, Every, Keep, WarmStart, WarmStartError
from sweeper.checkpoint.reading import list_checkpoints
from sweeper.declarations.warm_start import checked_warm_start, warm_start_of

Tree = tf.__internal__.tracking.AutoTrackable


def eager(model, optimizer="sgd"):
    model.compile(optimizer, "mse", run_eagerly=True)
    model(np.zeros((1, 2), "float32"))
    model.optimizer.build(model.trainable_variables)
    return model


def dense_net(optimizer="sgd"):
    """Three variables under fixed names: l1's kernel and bias, and head's kernel."""

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.l1 = keras.layers.Dense(3, name="first")
            self.head = keras.layers.Dense(2, name="last", use_bias=False)

        def call(self, x):
            return self.head(self.l1(x))

    return eager(Net(), optimizer)


def sequential(*layers):
    return eager(keras.Sequential([keras.Input((2,)), *layers], name="row"))


def numbers(*shape, begin=0.0):
    return (np.arange(np.prod(shape)) + begin).reshape(shape).astype("float32")


def tree(**children):
    """Objects as Keras 2 and an Estimator's model function had them, by attributes."""
    root = Tree()
    for name, child in children.items():
        below = tree(**child) if isinstance(child, dict) else child
        below = tf.Variable(below) if isinstance(below, np.ndarray) else below
        root._track_trackable(below, name=name.replace("__", "-"))
        root.__dict__[name] = below
    return root


NET = {
    "l1": {"kernel": numbers(2, 3), "bias": numbers(3)},
    "head": {"kernel": numbers(3, 2, begin=50)},
}


def saved(directory, **objects):
    trackables = {n: tree(**o) if isinstance(o, dict) else o for n, o in objects.items()}
    return Path(tf.train.Checkpoint(**trackables).save(str(directory / "ckpt")))


def nothing():
    return np.zeros((4, 2), "float32"), np.zeros((4, 2), "float32")


def begun(path, model, data=nothing, notices=None, **options):
    """The weights with which the training of the model begins."""
    arguments = {"warm_start": WarmStart(path, **options), "epochs": 0}
    notice = (lambda _: None) if notices is None else notices.append
    return fitted(lambda: model, data, notice=notice, **arguments).model.get_weights()


def refused(path, model, *names, **options):
    """Check that the file is refused for the model, with these names, and nothing is assigned."""
    weights = model.get_weights()
    with pytest.raises(WarmStartError) as raised:
        begun(path, model, **options)
    for name in (str(path), *names):
        assert name in str(raised.value), raised.value
    assert equal(model.get_weights(), weights)


EXPECTED = [NET["l1"]["kernel"], NET["l1"]["bias"], NET["head"]["kernel"]]

# TensorFlow's checkpoints, by others' names


@pytest.mark.parametrize("root", ["net", "model", "anything"])
def test_keras_2s_names_fit_whatever_the_model_was_saved_as(root, tmp_path):
    path = saved(tmp_path, **{root: NET}, step=tf.Variable(7))
    assert equal(begun(path, dense_net()), EXPECTED)


def test_a_keras_2_model_of_layers_in_a_row_fits_by_their_order(tmp_path):
    dense = keras.layers.Dense
    model = sequential(dense(3), keras.layers.Dropout(0.1), dense(2, use_bias=False))
    layers = {
        "layer_with_weights__0": NET["l1"],
        "layer__1": {},
        "layer_with_weights__1": NET["head"],
    }
    assert equal(begun(saved(tmp_path, model=layers), model), EXPECTED)


def test_layers_in_a_list_fit_by_keras_2s_names(tmp_path):
    class Stack(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [keras.layers.Dense(3), keras.layers.Dense(2, use_bias=False)]

        def call(self, x):
            return self.blocks[1](self.blocks[0](x))

    model = eager(Stack())
    path = saved(tmp_path, net={"blocks": {"0": NET["l1"], "1": NET["head"]}})
    assert equal(begun(path, model), EXPECTED)
    checkpoint = tf.train.Checkpoint(net=model).save(str(tmp_path / "own"))
    refused(checkpoint, model, "is not in it; looked for blocks/0/_kernel")


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
    def two(*names):
        return sequential(*(keras.layers.Dense(2, name=name) for name in names))

    path = tmp_path / "x.weights.h5"
    two("encoder", "decoder").save_weights(path)
    belongs = "layers/dense/vars/0 in it belongs to the layer 'encoder', and this is 'decoder'"
    refused(path, two("decoder", "encoder"), f"row/decoder/kernel is named differently: {belongs}")
    begun(path, two("encoder", "decoder"))


# Files of another kind


@pytest.mark.parametrize("whole", [False, True])
def test_weights_in_the_layout_of_keras_2_are_refused_with_advice(whole, tmp_path):
    source = sequential(keras.layers.Dense(2))
    path = tmp_path / "old.h5"
    if whole:
        legacy_h5_format.save_model_to_hdf5(source, str(path))
    else:
        with h5py.File(path, "w") as file:
            legacy_h5_format.save_weights_to_hdf5_group(file, source)
    refused(path, source, "HDF5 layout of Keras 2", "model.load_weights", "save_weights")


def test_nothing_of_a_keras_file_is_built_or_run(tmp_path):
    source = dense_net()
    source.save(tmp_path / "whole.keras")
    with zipfile.ZipFile(tmp_path / "whole.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["config.json"] = json.dumps({"module": "os", "class_name": "abort"}).encode()
    with zipfile.ZipFile(tmp_path / "evil.keras", "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    assert equal(begun(tmp_path / "evil.keras", dense_net()), source.get_weights())
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
    ("name", "description"),
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
def test_what_is_no_source_is_refused_with_what_was_seen(name, description, tmp_path):
    (tmp_path / "notes.txt").write_text("hello, world")
    (tmp_path / "empty.h5").touch()
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/saved_model.pb").touch()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["pixels"] = np.zeros(3)
    refused(tmp_path / name, dense_net(), description, "expected")


# Models


def test_a_model_whose_variables_a_batch_would_still_make_is_refused(tmp_path):
    path = saved(tmp_path, net=NET)
    unbuilt = keras.Sequential([keras.layers.Dense(3, name="first")], name="late")
    unbuilt.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(WarmStartError, match=r"'late' has no variables yet in 'first'.*build\("):
        begun(path, unbuilt)


def late_mlp():
    """With variables that only its first batch makes."""

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


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Weights of `late_mlp`, trained for an epoch."""
    path = tmp_path_factory.mktemp("first") / "base.weights.h5"
    fitted(late_mlp, unvalidated, epochs=1).model.save_weights(path)
    return path


@pytest.fixture
def base(first, tmp_path):
    return Path(shutil.copy(first, tmp_path))


class Begins(keras.callbacks.Callback):
    """Keeps what the model holds when training begins."""

    def on_train_begin(self, logs=None):
        self.seen = self.model.get_weights()


def test_a_fresh_unbuilt_model_is_built_first_and_callbacks_see_the_values(base):
    expected = late_mlp()
    expected(np.zeros((1, 8), "float32"))
    expected.optimizer.build(expected.trainable_variables)
    expected.load_weights(base)
    callback = Begins()
    notices = []
    options = {"warm_start": base, "notice": notices.append, "callbacks": lambda: [callback]}
    fitted(late_mlp, unvalidated, epochs=1, **options)
    assert equal(callback.seen, expected.get_weights())
    (notice,) = notices
    assert re.fullmatch(
        rf"begins from {base} \(Keras weights, digest \w{{8}}\): 8 of the model's 8 variables",
        notice,
    )


class Dies(keras.callbacks.Callback):
    """Ends the first attempt, and takes the file away, in the second epoch."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and self.file.exists():
            self.file.unlink()
            raise MemoryError


UNVALIDATED = {"data": without_validation, "objective": "loss"}


def test_a_resumed_trial_ends_alike_without_the_file_and_says_what_it_cannot(tmp_path):
    base = tmp_path / "base.weights.h5"
    regression(None).save_weights(base)

    def ran(name, warm_start, dies=(), **options):
        def callbacks(_trial):
            return [Dies(file) for file in dies]

        options |= {"callbacks": callbacks, "warm_start": warm_start, "epochs": 2}
        return Runner(tmp_path / name)(regression, **UNVALIDATED, **options).results.trials[0]

    cold = ran("cold", None)
    whole = ran("whole", WarmStart(base))
    events = []
    resumed = ran("resumed", WarmStart(base), [base], listener=events.append)
    assert [attempt.outcome for attempt in resumed.attempts] == ["crashed", "complete"]
    assert [e.metrics for e in resumed.epochs] == [e.metrics for e in whole.epochs]
    assert [e.metrics for e in resumed.epochs] != [e.metrics for e in cold.epochs]
    without = "without the file it can be neither started again nor verified"
    assert sum(without in str(event) for event in events) == 1
    report = dict(resumed.warm_start)
    assert list(report.pop("matched").values()) == ["layers/dense/vars/0", "layers/dense/vars/1"]
    numbers = {"of": 2, "optimizer": 0, "mismatches": []}
    file = {"path": str(base), "kind": "Keras weights", "digest": whole.warm_start["digest"]}
    assert report == {**file, **numbers}


@pytest.mark.parametrize("place", [None, "memory://warm-start"])
def test_another_trials_checkpoint_is_found_by_its_finished_epochs(place, tmp_path):
    places = {"runs_dir": tmp_path / "runs", **({"checkpoints_dir": place} if place else {})}
    often = {"checkpoint_every": Every(steps=1), "keep": Keep(last=9)}
    ran = Runner(tmp_path)(regression, **UNVALIDATED, epochs=3, **often, **places)
    trial = ran.results.best
    paths = {checkpoint.step: checkpoint.path for checkpoint in trial.checkpoints}
    assert paths.keys() == set(range(1, 7))

    def begin(epoch, number=0):
        source = WarmStart.from_trial("small", number, at=epoch, **places)
        notices = []
        data = lambda: without_validation(None)  # noqa: E731
        weights = begun(source.path, regression(None), data, notices, at=epoch)
        return weights, notices[0].partition(" (")[0]

    for epoch, step in (("last", 6), (1, 2), (2, 4)):
        weights, message = begin(epoch)
        assert message == f"begins from {paths[step]}"
        assert equal(weights, trial.load_model(at=step).get_weights())
    if place is None:
        [end] = list_checkpoints(tmp_path / "runs/small/trial-00000/end")
        with pytest.raises(
            WarmStartError, match=r"only names the checkpoint .* step-000000006, or"
        ):
            begun(end, regression(None), lambda: without_validation(None), [])
    with pytest.raises(WarmStartError, match=r"after 9 epochs; it has some after (0, )?1, 2, 3"):
        begin(9)
    with pytest.raises(WarmStartError, match="trial-00004"):
        begin("last", 4)


def test_the_optimizer_is_taken_by_its_slots_and_never_for_another_kind(tmp_path):
    source = dense_net(keras.optimizers.SGD(0.5, momentum=0.9))
    ones = (np.ones((4, 2)), np.ones((4, 2)))
    fitted(lambda: source, lambda: ones, epochs=1, checkpoints=tmp_path)
    path = list_checkpoints(tmp_path)[-1]
    target = dense_net(keras.optimizers.SGD(0.1, momentum=0.9))
    begun(path, target, optimizer=True)
    slots = [[v.numpy() for v in model.optimizer.variables[2:]] for model in (source, target)]
    assert equal(*slots)
    assert all(np.any(slot) for slot in slots[0])
    assert float(target.optimizer.learning_rate.numpy()) == pytest.approx(0.1)
    other = dense_net(keras.optimizers.RMSprop(0.1))
    refused(path, other, "looked for optimizer variable 2, which is ", "momentum", optimizer=True)
    assert not any(np.any(v.numpy()) for v in other.optimizer.variables[2:])


def test_numbers_of_generated_names_are_of_no_account_and_those_of_the_users_are(tmp_path):
    def net(name=None):
        layers = [keras.Input((2,)), keras.layers.Dense(2, name=name)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
        return model

    def checkpoint(name):
        ones = (np.ones((4, 2)), np.ones((4, 2)))
        source = fitted(lambda: net(name), lambda: ones, epochs=1, checkpoints=tmp_path / str(name))
        return source.model, list_checkpoints(tmp_path / str(name))[-1]

    source, path = checkpoint(None)
    target = net()
    assert target.layers[0].name != source.layers[0].name
    begun(path, target)
    assert equal(target.get_weights(), source.get_weights())
    _, path = checkpoint("block_1")
    begun(path, net("block_1"))
    refused(path, net("block_2"), "looked for", "block_2/kernel")


def test_a_file_that_has_changed_is_refused_by_the_digest_of_its_content(tmp_path):
    base = tmp_path / "base.weights.h5"
    copy = tmp_path / "copy.weights.h5"
    dense_net().save_weights(base)
    shutil.copy(base, copy)

    def now(file, expected):
        message = rf"{file} .*digest is (\w+), expected {expected}"
        with pytest.raises(CheckpointError, match=message) as raised:
            begun(file, dense_net(), digest=expected)
        return re.search(message, str(raised.value))[1]

    digest = now(base, "0" * 32)
    for file in (base, copy):
        begun(file, dense_net(), digest=digest)
    with h5py.File(base, "a") as file:
        file["l1/vars/1"][0] += 1
    now(base, digest)


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
