"""Whoever types what a message says gets this package, and a missing package is named as one."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import sweeper
from sweeper.checks.check import CheckReport, finding_of_failure
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.findings import Finding
from sweeper.records.results import StudyResults
from sweeper.run.trial.link import error_line, failure_of
from sweeper.search.spec import check_sampler
from sweeper.support.installation import (
    _EXTRAS,
    DISTRIBUTION,
    VERSION,
    install_command,
    missing_package,
)
from sweeper.views.page.report import file_of, page_template

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
    assert PROJECT["name"] == DISTRIBUTION != "sweeper"
    assert PROJECT["scripts"] == {"sweeper": "sweeper.cli.main:main"}
    assert sweeper.__version__ == VERSION
    assert EXTRAS["test"][0].startswith(f"{DISTRIBUTION}[")


def test_the_command_is_for_this_interpreter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setattr("sweeper.support.installation.find_spec", lambda _name: object())
    command = ".venv/bin/python -m pip install"
    assert install_command("dask", "gcsfs") == f"{command} 'sweeper-keras[dask]' gcsfs"
    assert install_command("", "keras>=3.10") == f"{command} 'keras>=3.10'"
    monkeypatch.setattr("sweeper.support.installation.find_spec", lambda _name: None)
    monkeypatch.chdir("/usr")
    line = install_command("plots")
    assert line == f"uv pip install --python {tmp_path}/.venv/bin/python 'sweeper-keras[plots]'"


def test_what_the_readme_installs_has_what_its_commands_need():
    names = {re.split(r"[<>=]", text)[0].replace("-", "_") for text in EXTRAS["examples"]}
    assert {"jinja2", "plotly", "optuna_dashboard", "pandas", "scikit_learn"} <= names
    assert "pip install '.[examples]'" in (ROOT / "README.md").read_text()


def test_what_needs_a_package_names_the_one_that_is_missing_and_its_command(monkeypatch):
    for package in ("jinja2", "pandas"):
        monkeypatch.setitem(sys.modules, package, None)
    page_template.cache_clear()
    with pytest.raises(UsageError, match=r"'jinja2', which is not installed: .*\[plots\]'"):
        file_of("study", "{}", "")
    with pytest.raises(UsageError, match=r"'pandas'.*pip install .*\[plots\]'"):
        StudyResults.to_dataframe(object.__new__(StudyResults))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DefinitionError, match=r"'torch'.*pip install .*\[gp\]'"):
        check_sampler("gp")


def test_no_text_tells_to_install_somebody_elses_package():
    pattern = re.compile(r"pip install[^\n`]*?['\" ]sweeper(?=[\[\s'\"`]|$)")
    assert pattern.search("type: pip install 'sweeper[dask]'"), "the search finds what it is for"
    hits = [
        f"{path}: {hit[0]}"
        for path in TEXTS
        if path.is_file() and path.suffix in {".py", ".md", ".sh", ".yaml", ".txt"}
        for hit in pattern.finditer(path.read_text())
    ]
    assert hits == []


def test_every_extra_that_is_named_is_there():
    assert set(_EXTRAS.values()) <= set(EXTRAS)
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


class TBNotInstalledError(ImportError):
    """Named as TensorFlow's is."""


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ModuleNotFoundError("x", name="torch"), "[gp]'"),
        (ModuleNotFoundError("x", name="pandas.core"), "[plots]'"),
        (TBNotInstalledError("TensorBoard is not installed"), "[tensorboard]'"),
        (ModuleNotFoundError("x", name="their_own"), "'their_own' is not installed"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_and_is_no_broken_promise(error, advice):
    assert advice in (missing_package(error) or "")
    assert advice in error_line(error, where=False)
    finding = finding_of_failure(failure_of(error), lambda _: None)
    assert finding.subject == "installation"
    assert advice in finding.message
    assert CheckReport("s", (finding,)).lacks_packages
    other = Finding("error", "capture", "a promise does not hold")
    assert not CheckReport("s", (finding, other)).lacks_packages, "a broken promise stays one"
    assert not CheckReport("s", ()).lacks_packages
