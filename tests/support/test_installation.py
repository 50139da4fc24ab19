"""Whoever types what a message says gets this package, and a missing package is named as one."""

import ast
import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from study_files import StudyText

import sweeper
from sweeper.cli.main import main
from sweeper.errors import UsageError
from sweeper.records.results import StudyResults

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXTS = [
    *(ROOT / "sweeper").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
]


def test_the_distribution_has_its_own_name_and_the_command_and_import_keep_theirs():
    assert PROJECT["name"] == "sweeper-keras"
    assert PROJECT["scripts"] == {"sweeper": "sweeper.cli.main:main"}
    assert metadata.version(PROJECT["name"]) == sweeper.__version__
    assert EXTRAS["test"][0].startswith(f"{PROJECT['name']}[")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A virtual environment below the current directory, with pip, that nobody has activated."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("pip", "python"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


def installed_from(monkeypatch, recorded):
    text = None if recorded is None else json.dumps(recorded)
    found = SimpleNamespace(read_text=lambda _name: text)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: found)


def command():
    """Return the command that is named where pandas is missing."""
    with pytest.raises(UsageError, match="'pandas'") as raised:
        StudyResults.to_dataframe(object.__new__(StudyResults))
    return re.search(r"installed: (.*); or", str(raised.value))[1]


def test_the_command_names_where_this_was_installed_from_and_the_pip_of_this_environment(
    environment, monkeypatch
):
    """No index has the package, and the README's first command activates nothing."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    here = {"url": environment.as_uri(), "dir_info": {}}
    installed_from(monkeypatch, here)
    assert command() == ".venv/bin/pip install '.[plots]'"
    monkeypatch.setenv("PATH", f"{environment / '.venv' / 'bin'}:/bin")
    installed_from(monkeypatch, here | {"dir_info": {"editable": True}})
    assert command() == "pip install -e '.[plots]'"
    (environment / "below").mkdir()
    monkeypatch.chdir("below")
    assert command() == f"pip install -e '{environment}[plots]'"
    (environment / ".venv" / "bin" / "pip").unlink()
    monkeypatch.setenv("PATH", "/bin")
    installed_from(monkeypatch, None)
    assert command() == f"uv pip install --python {environment}/.venv 'sweeper-keras[plots]'"


def test_what_the_readme_installs_has_what_its_commands_need():
    names = {re.split(r"[<>=]", text)[0].replace("-", "_") for text in EXTRAS["examples"]}
    assert {"jinja2", "plotly", "optuna_dashboard", "pandas", "scikit_learn"} <= names
    assert "pip install '.[examples]'" in (ROOT / "README.md").read_text()


def test_no_text_tells_to_install_somebody_elses_package():
    pattern = re.compile(r"pip install[^\n`]*?['\" ]sweeper(?=[\[\s'\"`]|$)")
    assert pattern.search("type: pip install 'sweeper[dask]'"), "the search finds what it is for"
    found = [
        f"{path}: {hit[0]}"
        for path in TEXTS
        if path.is_file() and path.suffix in {".py", ".md", ".sh", ".yaml", ".txt"}
        for hit in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_every_extra_that_is_named_is_there():
    table = (ROOT / "sweeper" / "support" / "installation.py").read_text()
    assert set(re.findall(r'^    "\w+": "(\w+)",$', table, re.MULTILINE)) <= set(EXTRAS)
    pattern = re.compile(
        r"sweeper-keras\[([a-z,]+)\]|\.\[([a-z,]+)\]|install_command\(\"([a-z]+)\""
    )
    for path in TEXTS:
        if path.suffix in {".py", ".md"}:
            for hit in pattern.finditer(path.read_text()):
                extras = next(group for group in hit.groups() if group).split(",")
                assert set(extras) <= set(EXTRAS), path


def test_a_dependency_is_one_that_sweeper_imports_or_that_a_sampler_needs():
    modules = set()
    for path in (ROOT / "sweeper").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(str(node.module).partition(".")[0])
    required = {re.split(r"[<>=\[]", text)[0].replace("-", "_") for text in PROJECT["dependencies"]}
    assert required - modules == set()


LACKING = """
class TBNotInstalledError(ImportError):
    "Named as TensorFlow's is."

raise {error}
"""


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("ModuleNotFoundError('x', name='torch')", "[gp]'"),
        ("ModuleNotFoundError('x', name='pandas.core')", "[plots]'"),
        ("TBNotInstalledError('TensorBoard is not installed')", "[tensorboard]'"),
        ("ModuleNotFoundError('x', name='their_own')", "'their_own' is not installed: install it"),
    ],
)
def test_a_package_that_a_study_lacks_is_named_with_its_extra(
    error, advice, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lacking.py").write_text(LACKING.format(error=error))
    assert main(["run", "lacking.py"]) != 0
    assert advice in capsys.readouterr().err.replace("\n", " ")


def test_a_missing_package_is_no_broken_promise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    StudyText(model="import nowhere").write(tmp_path / "study.py")
    assert main(["check", "study.py"]) == 1
    assert "cannot run: a package is missing" in capsys.readouterr().out
