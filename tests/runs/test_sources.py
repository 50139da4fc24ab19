"""A study's definition reaches another process, and a later command finds it again."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import python

from sweeper.api.study import Study
from sweeper.definition.loading import load_definition
from sweeper.errors import DefinitionChangedError, DefinitionError, StudyFileError, StudyImportError
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import (
    describe_source,
    load_source,
    recall_source,
    source_of,
    target_source,
)
from sweeper.run.protocol.messages import StudySource

SCALE = 3


def study(**changes):
    values = {"name": "s", "model": lambda trial: SCALE, "data": print, "epochs": 1, "trials": 1}
    return Study(**{**values, **changes})


def test_a_definition_travels_by_value_with_what_its_functions_use():
    offset = 4
    source = source_of(study(model=lambda trial: trial + offset))
    loaded = load_source(source)
    assert (source.how, loaded.name, loaded.model(1)) == ("pickled", "s", 5)


def test_what_cannot_travel_is_named():
    lock = threading.Lock()
    with pytest.raises(DefinitionError, match=r"study 's' cannot be sent .* lock"):
        source_of(study(model=lambda trial: lock))


def test_what_cannot_travel_is_imported_where_it_was_loaded_from(tmp_path):
    file = tmp_path / "locking-study.py"
    file.write_text(
        "import threading\nfrom sweeper import Study\nLOCK = threading.Lock()\n"
        "def model(trial): return LOCK\n"
        "study = Study(name='filed', model=model, data=model, epochs=1, trials=1)\n"
    )
    loaded = load_definition(str(file))
    source = source_of(loaded)
    assert (source.how, source.target, source.study) == ("target", str(file), "filed")
    assert load_source(source) is loaded
    file.write_text(file.read_text().replace("return LOCK", "return [LOCK]"))
    del sys.modules[loaded.model.__module__]
    with pytest.raises(DefinitionChangedError):
        load_source(source)


def test_a_study_by_value_is_the_study_that_its_file_is(tmp_path):
    """What its variables were made of does not travel; without it, another study seems to have come."""
    file = tmp_path / "drawn-numbers.py"
    file.write_text(
        "import numpy as np\nfrom sweeper import Study\n"
        "drawn = np.random.default_rng(7)\nx = drawn.normal(size=3)\n"
        "def model(trial): return x\n"
        "study = Study(name='drawn', model=model, data=model, epochs=1, trials=1, objective='loss')\n"
    )
    by_file = target_source(str(file))
    by_value = source_of(load_definition(str(file)))
    assert (by_file.how, by_value.how) == ("target", "pickled")

    def code(source):
        with open_launcher(source, "auto", pytest.fail) as (_, loaded):
            assert loaded.code is not None
            return loaded.code

    file_code = code(by_file)
    assert code(by_value).changes_since(file_code) == ()
    assert code(replace(by_value, defined_code=None)).changes_since(file_code) != ()


@pytest.mark.parametrize(
    ("pickled", "error", "message"),
    [
        ("Y25vX3N1Y2hfbW9kdWxlCmYKLg==", StudyImportError, r"study 's' .*no_such_module"),
        ("SzEu", StudyFileError, "got a int"),
    ],
)
def test_what_is_no_study_or_cannot_be_put_together_says_why(pickled, error, message):
    with pytest.raises(error, match=message) as failure:
        load_source(StudySource(how="pickled", target="", study="s", pickled=pickled))
    if error is StudyImportError:
        assert "ModuleNotFoundError" in failure.value.traceback


def test_a_file_is_remembered_by_its_whole_path_and_a_module_by_where_it_was_found_from(
    tmp_path, monkeypatch
):
    (tmp_path / "here.py").write_text("")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    recalled = recall_source("s", describe_source(target_source("pack")))
    assert (recalled.target, recalled.study, recalled.path) == ("pack", "s", (str(tmp_path),))
    described = describe_source(target_source("here.py:NAME"))
    assert described["location"] == str(tmp_path / "here.py")
    monkeypatch.chdir("/")
    assert recall_source("s", described).target == f"{tmp_path / 'here.py'}:NAME"


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (None, "defined in a notebook"),
        ({"how": "pickled", "location": "", "name": None}, "defined in a notebook"),
        ({"how": "target", "location": "/gone/a.py", "name": None}, "/gone/a.py, which is missing"),
    ],
)
def test_code_that_is_gone_is_said_to_be(described, message):
    with pytest.raises(StudyFileError, match=message) as refusal:
        recall_source("mine", described)
    assert "'mine'" in str(refusal.value)


def test_a_database_row_has_no_file_run_that_was_not_run_before(tmp_path, monkeypatch):
    """A row that others can write may name any file here; what it holds must be what was run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    for file in ("study.py", "pack/__init__.py", "pack/deep.py"):
        (tmp_path / file).write_text("study = None\n")
    for target in ("study.py:study", "pack", "pack.deep:study"):
        row = describe_source(target_source(target))
        assert recall_source("s", row).target.endswith(target), "the control: nothing has changed"
        for sha in (None, "0" * 64):
            forged = {**row, "meaning": sha}
            without = {name: value for name, value in row.items() if name != "meaning"}
            for other in (forged, without):
                with pytest.raises(StudyFileError, match="differs from the file of study 's'"):
                    recall_source("s", other)
    row = describe_source(target_source("study.py"))
    (tmp_path / "study.py").write_text('"""Mine."""\n\nstudy = (None)  # a remark\n')
    assert recall_source("s", row), "it says the same"
    (tmp_path / "study.py").write_text("study = None; import os; os.system('true')\n")
    with pytest.raises(StudyFileError, match=r"type `sweeper run .*study\.py"):
        recall_source("s", row)
    assert target_source("study.py").target == "study.py", "named by the user, it is run"


def test_a_module_that_another_directory_would_put_instead_is_refused(tmp_path, monkeypatch):
    for directory, text in (("mine", "study = 1\n"), ("theirs", "raise SystemExit\n")):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "only_here.py").write_text(text)
    monkeypatch.chdir(tmp_path / "mine")
    row = describe_source(target_source("only_here"))
    monkeypatch.chdir(tmp_path)
    assert recall_source("s", row).target == "only_here"
    with pytest.raises(StudyFileError, match="only_here on this machine differs from the file"):
        recall_source("s", {**row, "directory": str(tmp_path / "theirs")})


def test_no_module_of_the_current_directory_hides_a_library(tmp_path):
    """``python -m`` looks there first, and the server, or a trial, would run what lies there."""
    here = tmp_path / "here"
    stubs = tmp_path / "stubs"
    for directory in (here, stubs):
        directory.mkdir()
    for name in ("pydantic", "keras", "psutil"):
        (here / f"{name}.py").write_text("open('ran', 'w').close()\n")
    (stubs / "tensorflow.py").write_text("raise ImportError('as far as it has to come')\n")
    code = (
        "from sweeper.run.protocol.messages import StudySource\n"
        "from sweeper.run.launch.launchers import WarmServer\n"
        "WarmServer(StudySource('target', 'x.py')).loaded()\n"
    )
    path = f"{Path(__file__).parents[2]}:{stubs}"
    ended = python("-P", "-c", code, cwd=here, env={"PYTHONPATH": path})
    assert "as far as it has to come" in ended.err, ended.err
    assert not (here / "ran").exists()
