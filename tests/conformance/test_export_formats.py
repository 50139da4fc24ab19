"""Every form in which a model leaves: whole and equal, or not there; a new form is one line here.

One study runs for all of them, in this process.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
from small_models import Ran, Runner

from sweeper import ExportError, Trial, UsageError
from sweeper.models import writing
from sweeper.models.exported import Exported
from sweeper.models.formats import SUFFIXES

FORMATS = ("keras", "weights", "savedmodel", "frozen", "tf-checkpoint", "safetensors")


def normalized(trial: Trial) -> keras.Model:
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
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Runner(tmp_path_factory.mktemp("exports"))(normalized, epochs=2)


@pytest.fixture(scope="module")
def exported(
    ran: Ran, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Exported]]:
    """The study's model in a form, alone in a directory: each form is written once."""

    @functools.cache
    def export(form: str) -> tuple[Path, Exported]:
        path = tmp_path_factory.mktemp(form) / f"model{SUFFIXES[form]}"
        return path, ran.results.best.export(path, form)

    return export


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(form: str, tmp_path: Path) -> Iterator[Path]:
    """Where a model of the form goes; nothing else may be left beside it."""
    path = tmp_path / f"model{SUFFIXES[form]}"
    yield path
    check_alone(path)


def check_alone(path: Path) -> None:
    """Beside a model there is nothing but its description."""
    left = {each.name for each in path.parent.iterdir()}
    assert left <= {path.name, f"{path.name}.json"}


def test_the_suite_knows_every_form() -> None:
    assert set(FORMATS) == set(SUFFIXES)


def test_it_is_written_and_described(
    ran: Ran, form: str, exported: Callable[[str], tuple[Path, Exported]]
) -> None:
    best = ran.results.best
    place, said = exported(form)

    card = json.loads(place.with_name(f"{place.name}.json").read_text())
    assert said.path == str(place)
    assert place.exists()
    check_alone(place)
    assert card == json.loads(json.dumps(said.card))
    assert (card["study"], card["trial"], card["step"]) == ("small", 0, 16)
    assert card["parameters"] == dict(best.params)
    assert card["digest"] == best.digest
    assert card["value"] == best.value
    assert card["metrics"] == dict(best.epochs[-1].metrics)
    assert card["versions"]["keras"] == keras.__version__


def test_what_is_there_is_replaced_only_when_asked(
    ran: Ran, form: str, place: Path, exported: Callable[[str], tuple[Path, Exported]]
) -> None:
    best = ran.results.best
    shutil.copytree(exported(form)[0].parent, place.parent, dirs_exist_ok=True)
    with pytest.raises(UsageError) as raised:
        best.export(place, form)
    assert str(raised.value) == (
        f"{place} already exists; name another path, or replace it (--force, force=True)"
    )
    card = place.with_name(f"{place.name}.json")
    assert json.loads(card.read_text())["step"] == 16
    best.export(place, form, at=8, force=True)
    assert json.loads(card.read_text())["step"] == 8


def test_a_full_disk_leaves_nothing(
    ran: Ran, form: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = writing._write

    def full(*given: Any) -> Any:
        write(*given)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))

    monkeypatch.setattr(writing, "_write", full)
    with pytest.raises(ExportError) as raised:
        ran.results.best.export(place, form)
    assert str(raised.value) == (
        f"the model cannot be written to {place}: No space left on device; nothing was left there. "
        "Free some space, or name another path"
    )
    assert not place.exists()


def test_a_directory_that_is_missing_is_named(ran: Ran, form: str, tmp_path: Path) -> None:
    path = tmp_path / "missing" / f"model{SUFFIXES[form]}"
    with pytest.raises(UsageError) as raised:
        ran.results.best.export(path, form)
    assert str(raised.value) == (
        f"{path.parent}, where {path.name} is to be written, does not exist; make it first"
    )
