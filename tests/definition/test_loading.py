"""A study is found where its target says, or the message says what is there instead."""

import importlib
import os
import sys

import pytest

from sweeper.api.study import Study, load_study
from sweeper.definition.loading import is_loading, load_definition, loaded_from, split_target
from sweeper.errors import DefinitionError, StudyFileError, StudyImportError

STUDY = """
from sweeper import Study

def model(trial): ...
def data(trial): ...

study = Study(name={name!r}, model=model, data=data, epochs=1, trials=1)
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch, tmp_path):
    """Forget what a test imports, and stand in an empty directory."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path, name="one", more=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STUDY.format(name=name) + more)
    return path


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("a.py", ("a.py", None)),
        ("a.py:study", ("a.py", "study")),
        ("dir/a.py:my_study", ("dir/a.py", "my_study")),
        ("package.module:NAME", ("package.module", "NAME")),
        ("C:\\studies\\a.py", ("C:\\studies\\a.py", None)),
        ("C:study", ("C:study", None)),
        ("a.py:", ("a.py:", None)),
        ("a.py:1", ("a.py:1", None)),
    ],
)
def test_a_target_is_split_at_its_name(target, parts):
    assert split_target(target) == parts


def test_the_only_study_needs_no_name_even_under_two(tmp_path):
    file = write(tmp_path / "a.py", more="best = study\n")
    study = load_definition(str(file))
    assert study.name == "one"
    assert load_definition(f"{file}:best") is study
    assert loaded_from(study) == f"{file}:best"
    assert loaded_from(Study(name="x", model=print, data=print, epochs=1, trials=1)) is None


def test_of_several_studies_the_one_of_that_name_is_taken(tmp_path):
    more = 'other = Study(name="two", model=model, data=data, epochs=1, trials=1)\nx = 3\n'
    file = write(tmp_path / "b.py", more=more)
    with pytest.raises(StudyFileError, match="a int under the name 'x'"):
        load_definition(f"{file}:x")
    assert load_definition(str(file), study_name="two").name == "two"
    with pytest.raises(StudyFileError, match=r"no study called 'three'; it holds study \('one'\)"):
        load_definition(str(file), study_name="three")
    with pytest.raises(StudyFileError, match="is now a study called 'two'; expected 'one'"):
        load_definition(f"{file}:other", study_name="one")


def test_files_that_no_import_would_find_are_loaded_all_the_same(tmp_path):
    dashed = write(tmp_path / "my-study 2.py", "dashed")
    shadowing = write(tmp_path / "json.py", "shadowing")
    assert load_definition(str(dashed)).name == "dashed"
    assert load_definition(str(shadowing)).name == "shadowing"
    import json

    assert json.loads("1") == 1
    one = write(tmp_path / "x" / "s.py", "x")
    two = write(tmp_path / "y" / "s.py", "y")
    assert [load_definition(str(f)).name for f in (one, two)] == ["x", "y"]


def edit_at_once(file, text):
    """Within the second in which it was written, to a text as long."""
    status = file.stat()
    file.write_text(text)
    os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size


@pytest.mark.parametrize("target", ["edited.py", "edited"])
def test_a_study_is_loaded_as_it_stands_whatever_python_has_compiled_of_it(
    tmp_path, monkeypatch, target
):
    """So are the modules that it imports, also when its factories do that, later."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "Users" not in str(f)])
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("helper", "later"):
        (tmp_path / f"{name}.py").write_text("NAME = 'one'")
    text = STUDY.replace("{name!r}", "helper.NAME + 'one'")
    (tmp_path / "edited.py").write_text(f"import helper\n{text}")

    def found():
        modules = [importlib.import_module(name) for name in ("later", "edited")]
        for name in ("edited", "helper", "later"):
            del sys.modules[name]
        return [modules[0].NAME, modules[1].study.name]

    assert found() == ["one", "oneone"]
    for file in tmp_path.glob("*.py"):
        edit_at_once(file, file.read_text().replace("'one'", "'two'"))
    assert found() == ["one", "oneone"], "the control"
    assert load_definition(target).name == "twotwo"
    assert importlib.import_module("later").NAME == "two"


@pytest.mark.parametrize("target", ["pkg/inner/train.py", "pkg.inner.train"])
def test_a_file_that_imports_from_its_package_by_dots_is_loaded_in_it(target, tmp_path):
    for directory in ("pkg", "pkg/inner"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "__init__.py").touch()
    (tmp_path / "pkg" / "names.py").write_text('NAME = "named"\n')
    text = STUDY.replace("{name!r}", "NAME")
    (tmp_path / "pkg/inner/train.py").write_text(f"from ..names import NAME\n{text}")
    definition = load_definition(target)
    assert definition.name == "named"
    assert definition.model.__module__ == "pkg.inner.train"


def test_a_package_is_found_below_the_current_directory(tmp_path):
    write(tmp_path / "mine" / "__init__.py", "in-init")
    write(tmp_path / "mine" / "deep.py", "deep")
    assert load_definition("mine").name == "in-init"
    assert load_definition("mine.deep:study").name == "deep"
    with pytest.raises(StudyFileError, match="neither a file nor a module"):
        load_definition("mine.deeper")
    (tmp_path / "plain").mkdir()
    with pytest.raises(StudyFileError, match="plain is a directory"):
        load_definition("plain")
    with pytest.raises(StudyFileError, match="null is a pipe or a device, which a trial's process"):
        load_definition("/dev/null")
    # A sibling's missing import is the module's error.
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(StudyImportError, match="not_installed_anywhere") as failure:
        load_definition("pack")
    assert 'pack/__init__.py", line 1' in failure.value.traceback
    assert "importlib" not in failure.value.traceback


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", r"called sys.exit\(4\) \("),
        ("def f(:", "raised SyntaxError"),
    ],
)
def test_a_module_that_fails_is_reported_with_its_line_and_can_be_mended(tmp_path, code, message):
    file = tmp_path / "e.py"
    file.write_text(f"\n{code}\n")
    with pytest.raises(StudyImportError, match=message) as failure:
        load_definition(str(file))
    assert f"({file}, line 2)" in str(failure.value)
    assert "sweeper/definition/loading.py" not in failure.value.traceback
    assert not is_loading()
    write(file, "mended")
    assert load_definition(str(file)).name == "mended"


def test_our_errors_are_passed_on_and_a_bare_definition_cannot_be_run_from_python(tmp_path):
    with pytest.raises(DefinitionError, match="'a/b' cannot be a study's name"):
        load_definition(str(write(tmp_path / "f.py", "a/b")))
    file = tmp_path / "g.py"
    file.write_text(
        "from sweeper.definition.definition import StudyDefinition\n"
        "study = StudyDefinition(name='g', model=print, data=print, epochs=1, trials=1)\n"
    )
    assert load_definition(str(file)).name == "g"
    with pytest.raises(StudyFileError, match=r"write sweeper\.Study"):
        load_study(file)


def test_a_file_is_read_up_to_the_line_that_runs_its_study(tmp_path):
    file = tmp_path / "unguarded_study.py"
    line = "{0} = Study(name={0!r}, model=print, data=print, epochs=1, trials=1)\n"
    text = "from sweeper import Study\n" + line.format("first")
    file.write_text(text + "first.run()\n" + line.format("second"))

    assert load_definition(str(file)).name == "first"
    assert not is_loading()
    # What stands behind the call is not there, and the message says why.
    with pytest.raises(StudyFileError, match=r"'second'.* up to line 3 of .*unguarded_study.py"):
        load_definition(str(file), study_name="second")


def test_a_module_that_runs_its_study_is_read_up_to_there_by_its_name(tmp_path, monkeypatch):
    package = tmp_path / "package_of_studies"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(
        "from sweeper import Study\nstudy = Study(name='one', model=print, data=print, epochs=1, "
        "trials=1)\ntry:\n    study.evaluate()\nexcept Exception:\n    raise SystemExit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_definition("package_of_studies.one").name == "one"
