"""Every form in which a model leaves: whole and equal, or not there; a new form is one line here.

One study runs for all of them, in this process.
"""

import errno
import functools
import json
import os
import shutil

import keras
import pytest
from small_models import Runner

from sweeper import ExportError, UsageError
from sweeper.models import writing
from sweeper.models.exported import SUFFIXES

FORMATS = ("keras", "weights", "savedmodel", "frozen", "tf-checkpoint", "safetensors")


def normalized(trial):
    """A named input, moving statistics, and an optimizer with slots."""
    model = keras.Sequential(
        [
            keras.Input((6,), name="features"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    rate = trial.suggest_float("rate", 0.01, 0.1)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy")
    return model


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("exports"))(normalized, epochs=2)


@pytest.fixture(scope="module")
def exported(ran, tmp_path_factory):
    """The study's model in a form, alone in a directory: each form is written once."""

    @functools.cache
    def export(form):
        path = tmp_path_factory.mktemp(form) / f"model{SUFFIXES[form]}"
        return path, ran.results.best.export(path, form)

    return export


@pytest.fixture(params=FORMATS)
def form(request):
    return request.param


BY_WHOEVER_WRITES = pytest.mark.parametrize(
    "form",
    [
        pytest.param(f, marks=[pytest.mark.whole] * (f not in ("safetensors", "tf-checkpoint")))
        for f in FORMATS
    ],
    indirect=True,
)
"""For what is the same code for every form: by default a file and a directory."""


@pytest.fixture
def place(form, tmp_path):
    """Where a model of the form goes; nothing else may be left beside it."""
    path = tmp_path / f"model{SUFFIXES[form]}"
    yield path
    check_alone(path)


def check_alone(path):
    """Beside a model there is nothing but its description."""
    names = {file.name for file in path.parent.iterdir()}
    assert names <= {path.name, f"{path.name}.json"}


def test_the_suite_knows_every_form():
    assert set(FORMATS) == set(SUFFIXES)


def test_it_is_written_and_described(ran, form, exported):
    best = ran.results.best
    place, export = exported(form)

    card = json.loads(place.with_name(f"{place.name}.json").read_text())
    assert export.path == str(place)
    assert place.exists()
    check_alone(place)
    assert card == json.loads(json.dumps(export.card))
    assert (card["study"], card["trial"], card["step"]) == ("small", 0, 4)
    assert card["parameters"] == dict(best.params)
    assert card["digest"] == best.digest
    assert card["value"] == best.value
    assert card["metrics"] == dict(best.epochs[-1].metrics)
    assert card["versions"]["keras"] == keras.__version__


@BY_WHOEVER_WRITES
def test_what_is_there_is_replaced_only_when_asked(ran, form, place, exported):
    best = ran.results.best
    shutil.copytree(exported(form)[0].parent, place.parent, dirs_exist_ok=True)
    with pytest.raises(UsageError, match=f"{place} already exists.*force=True"):
        best.export(place, form)
    card = place.with_name(f"{place.name}.json")
    assert json.loads(card.read_text())["step"] == 4
    best.export(place, form, at=2, force=True)
    assert json.loads(card.read_text())["step"] == 2


@BY_WHOEVER_WRITES
def test_a_full_disk_leaves_nothing(ran, form, place, monkeypatch):
    write = writing._write

    def full(*arguments):
        write(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))

    monkeypatch.setattr(writing, "_write", full)
    with pytest.raises(ExportError, match=f"cannot be written to {place}: No space left"):
        ran.results.best.export(place, form)
    assert not place.exists()


def test_a_directory_that_is_missing_is_named(ran, form, tmp_path):
    path = tmp_path / "missing" / f"model{SUFFIXES[form]}"
    with pytest.raises(UsageError, match=f"{path.parent}, where {path.name} is .*does not exist"):
        ran.results.best.export(path, form)
