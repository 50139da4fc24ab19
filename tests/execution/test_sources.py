"""A study's definition reaches another process, and a later command finds it again."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from sweeper.errors import DefinitionError, StudyFileError, StudyImportError
from sweeper.execution.channel import StudySource
from sweeper.execution.sources import (
    describe_source,
    load_source,
    recall_source,
    source_of,
    target_source,
)
from sweeper.loading import load_definition
from sweeper.study import Study

SCALE = 3


def study(**changes: object) -> Study:
    values = {"name": "s", "model": lambda trial: SCALE, "data": print, "epochs": 1, "trials": 1}
    return Study(**{**values, **changes})


def test_a_definition_travels_by_value_with_what_its_functions_use() -> None:
    offset = 4
    source = source_of(study(model=lambda trial: trial + offset))
    found = load_source(source)
    assert (source.how, found.name, found.model(1)) == ("pickled", "s", 5)


def test_what_cannot_travel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    with pytest.raises(DefinitionError, match=r"study 's' cannot be sent .* lock"):
        source_of(study(model=lambda trial: lock))


def test_a_study_loaded_from_a_file_is_found_there_again(tmp_path: Path) -> None:
    file = tmp_path / "my-study.py"
    file.write_text(
        "from sweeper import Study\nN = 5\ndef model(trial): return N\n"
        "study = Study(name='filed', model=model, data=model, epochs=1, trials=1)\n"
    )
    loaded = load_definition(str(file))
    module = loaded.model.__module__
    source = source_of(loaded)
    assert source.target == str(file)
    del sys.modules[module]
    assert load_source(source).model(None) == 5, "its module's name means nothing elsewhere"
    assert recall_source("filed", describe_source(source)).target == str(file)


def test_what_cannot_be_put_together_says_why() -> None:
    broken = StudySource(
        how="pickled", target="", study="s", pickled="Y25vX3N1Y2hfbW9kdWxlCmYKLg=="
    )
    with pytest.raises(StudyImportError, match=r"study 's' .*no_such_module") as failure:
        load_source(broken)
    assert "ModuleNotFoundError" in failure.value.traceback


def test_what_is_no_study_is_refused() -> None:
    number = StudySource(how="pickled", target="", pickled="SzEu")
    with pytest.raises(StudyFileError, match="got a int"):
        load_source(number)


def test_a_file_is_remembered_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.py").write_text("")
    monkeypatch.chdir(tmp_path)
    described = describe_source(target_source("here.py:NAME"))
    assert described["location"] == str(tmp_path / "here.py")
    monkeypatch.chdir("/")
    assert recall_source("s", described).target == f"{tmp_path / 'here.py'}:NAME"


def test_a_module_is_remembered_with_the_directory_it_was_found_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack").mkdir()
    monkeypatch.chdir(tmp_path)
    recalled = recall_source("s", describe_source(target_source("pack")))
    assert (recalled.target, recalled.study, recalled.path) == ("pack", "s", (str(tmp_path),))


@pytest.mark.parametrize(
    ("described", "told"),
    [
        (None, "defined in a notebook"),
        ({"how": "pickled", "location": "", "name": None}, "defined in a notebook"),
        ({"how": "target", "location": "/gone/a.py", "name": None}, "/gone/a.py, which is gone"),
    ],
)
def test_code_that_is_gone_is_said_to_be(described: dict[str, object] | None, told: str) -> None:
    with pytest.raises(StudyFileError, match=told) as refusal:
        recall_source("mine", described)
    assert "'mine'" in str(refusal.value)
