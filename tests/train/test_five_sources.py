"""What sources that this project answers ask for, where no other file holds it.

`docs/dev/sources.md` has the whole table, with the tests of every demand.
"""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from fitted import fitted, fitted_in_parts
from trainings import equal, weights

from sweeper import AtStep, Data, Keep, RestoreError
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint

# 001


def overfits(metrics):
    return bool(metrics["val_loss"] > metrics["loss"])


def small_net():
    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def noisy_data():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(40, 4)).astype("float32")
    y = generator.normal(size=(40, 1)).astype("float32")
    # Every third step is an "epoch": validated, and offered to the retention rules.
    return Data(
        train=(x[:24], y[:24]), validation=(x[24:], y[24:]), batch_size=4, steps_per_epoch=3
    )


def cut_power(*_given):
    raise ConnectionError


def test_001_every_n_steps_a_checkpoint_below_the_best_so_far_and_above_the_training_cost_is_kept(
    tmp_path,
):
    keep = Keep(last=1, improving="val_loss", when=overfits, at_most=150)

    def run(directory, function=lambda *_arguments: None):
        def callbacks():
            return [AtStep(20, function)]

        options = {"checkpoints": directory, "keep": keep, "callbacks": callbacks}
        return fitted(small_net, noisy_data, epochs=16, **options).history

    def steps(directory):
        return [load_checkpoint(path).step for path in list_checkpoints(directory)]

    history = run(tmp_path / "whole")
    expected = []
    best = 99999.0
    for epoch, (cost, validation) in enumerate(
        zip(history["loss"], history["val_loss"], strict=True), 1
    ):
        if validation < best and validation > cost:
            expected.append(3 * epoch)
            best = validation
    assert 1 < len(expected) < 16
    assert steps(tmp_path / "whole") == sorted({*expected, 48})
    with pytest.raises(ConnectionError):
        run(tmp_path / "cut", cut_power)
    assert run(tmp_path / "cut") == history
    assert steps(tmp_path / "cut") == steps(tmp_path / "whole")


# 002


class Net(keras.Model):
    """The source's: variables that the first call makes."""

    def __init__(self, **options):
        super().__init__(name="net")
        self.l1 = keras.layers.Dense(5, **options)

    def call(self, x):
        return self.l1(x)


def late_net(**options):
    model = Net(**options)
    model.compile("sgd", "mae")
    assert model.trainable_variables == []
    return model


def toy_data():
    inputs = np.arange(10.0, dtype="float32")[:, None]
    return Data(train=(inputs, inputs * 5.0 + np.arange(5.0, dtype="float32")), batch_size=2)


def test_002_a_restore_is_complete_or_an_error_never_silent(tmp_path):
    """Also into a network that has no variables yet."""
    whole = fitted(late_net, toy_data)
    resumed = fitted_in_parts([7], tmp_path, late_net, toy_data)
    assert equal(weights(resumed.model), weights(whole.model))
    with pytest.raises(RestoreError, match="does not fit this training") as raised:
        fitted(lambda: late_net(use_bias=False), toy_data, epochs=3, checkpoints=tmp_path)
    assert "nothing was restored" in str(raised.value)


def test_what_the_table_names_is_there():
    tests = Path(__file__).parents[1]
    root = tests.parent
    page = (root / "docs/dev/sources.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| 00")]
    assert [row[2:5] for row in rows] == ["000", "001", "002", "003", "004"]
    assert all("`test_" in row for row in rows)
    sources = "\n".join(file.read_text() for file in tests.rglob("test_*.py"))
    for named in re.findall(r"`(test_\w+)`", page):
        assert f"def {named}(" in sources, named
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page)
    places = (root, root / "sweeper")
    missing = [path for path in paths if not any((place / path).exists() for place in places)]
    assert missing == []
