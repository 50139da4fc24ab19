"""Whoever types what a message says gets this package, and a missing package is named as one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sweeper
from sweeper.errors import DefinitionError, UsageError
from sweeper.execution.trial.reasons import error_line
from sweeper.independence.authorship import StudyCode
from sweeper.independence.findings import CheckReport, Finding
from sweeper.installation import _EXTRAS, DISTRIBUTION, VERSION, install_command, missing_package
from sweeper.results import StudyResults
from sweeper.search.spec import check_sampler

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXTS = [
    *(ROOT / "sweeper").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
]


def test_the_distribution_has_its_own_name_and_the_command_and_import_keep_theirs() -> None:
    assert PROJECT["name"] == DISTRIBUTION != "sweeper"
    assert PROJECT["scripts"] == {"sweeper": "sweeper.cli.main:main"}
    assert sweeper.__version__ == VERSION
    assert install_command() == "pip install sweeper-keras"
    assert install_command("dask", "gcsfs") == "pip install 'sweeper-keras[dask]' gcsfs"
    assert EXTRAS["test"][0].startswith(f"{DISTRIBUTION}[")


def test_no_text_tells_to_install_somebody_elses_package() -> None:
    pattern = re.compile(r"pip install[^\n`]*?['\" ]sweeper(?=[\[\s'\"`]|$)")
    assert pattern.search("type: pip install 'sweeper[dask]'"), "the search finds what it is for"
    found = [
        f"{path}: {hit[0]}"
        for path in TEXTS
        if path.is_file() and path.suffix in {".py", ".md", ".sh", ".yaml", ".txt"}
        for hit in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_every_extra_that_is_named_is_there() -> None:
    assert set(_EXTRAS.values()) <= set(EXTRAS)
    pattern = re.compile(
        r"sweeper-keras\[([a-z,]+)\]|\.\[([a-z,]+)\]|install_command\(\"([a-z]+)\""
    )
    for path in TEXTS:
        if path.suffix in {".py", ".md"}:
            for hit in pattern.finditer(path.read_text()):
                extras = next(group for group in hit.groups() if group).split(",")
                assert set(extras) <= set(EXTRAS), path


def test_a_dependency_is_one_that_sweeper_imports_or_that_a_sampler_needs() -> None:
    modules = set()
    for path in (ROOT / "sweeper").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(str(node.module).partition(".")[0])
    required = {re.split(r"[<>=\[]", text)[0].replace("-", "_") for text in PROJECT["dependencies"]}
    # Optuna imports it.
    assert required - modules == {"cmaes"}


def test_the_version_is_printed_from_the_code_itself() -> None:
    words = [sys.executable, "-m", "sweeper", "--version"]
    said = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert said.stdout == f"sweeper {VERSION}\n"


class TBNotInstalledError(ImportError):
    """Named as TensorFlow's is."""


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ModuleNotFoundError("x", name="torch"), "'sweeper-keras[gp]'"),
        (ModuleNotFoundError("x", name="pandas.core"), "'sweeper-keras[plots]'"),
        (TBNotInstalledError("TensorBoard is not installed"), "'sweeper-keras[tensorboard]'"),
        (ModuleNotFoundError("x", name="their_own"), "'their_own' is not installed"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_and_is_no_broken_promise(
    error: ImportError, advice: str
) -> None:
    assert advice in (missing_package(error) or "")
    assert advice in error_line(error, where=False)
    finding = StudyCode.finding_of(_authors(), error, "training some steps", "build")
    assert finding.check == "installation"
    assert advice in finding.message
    assert _report(finding).lacks_packages
    other = Finding("error", "capture", "a promise does not hold")
    assert not _report(finding, other).lacks_packages, "a broken promise stays one"
    assert not _report().lacks_packages


def test_an_error_that_is_no_missing_package_is_judged_as_before() -> None:
    for error in (ValueError("x"), ImportError("cannot import name", name="numpy")):
        assert missing_package(error) is None
        assert StudyCode.finding_of(_authors(), error, "x", "build").check == "build"


def test_a_sampler_and_a_table_that_need_a_package_name_their_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DefinitionError, match=r"'torch'.*pip install 'sweeper-keras\[gp\]'"):
        check_sampler("gp")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"'pandas'.*pip install 'sweeper-keras\[plots\]'"):
        StudyResults.to_dataframe(object.__new__(StudyResults))


def _authors() -> StudyCode:
    authors = object.__new__(StudyCode)
    authors.model = test_every_extra_that_is_named_is_there
    return authors


def _report(*findings: Finding) -> CheckReport:
    return CheckReport(study="s", findings=findings)
