"""What runs elsewhere: workflows, hooks and forms agree with what the package says of itself."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def loose_actions(text):
    """Return the actions that are not pinned by a full digest with its version in a comment."""
    uses = re.findall(r"uses: (.+)", text)
    return [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", use)]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_so_that_nobody_can_move_it(workflow):
    text = workflow.read_text()
    assert "uses: " in text
    assert loose_actions(text) == []


def test_control_a_tag_and_a_digest_without_its_version_are_loose():
    digest = "0123456789" * 4
    lines = [f"a/b@{digest} # v1.2", "a/b@v4", f"a/b@{digest}", "a/b@0123456 # v1"]
    assert loose_actions("\n".join(f"- uses: {use}" for use in lines)) == lines[1:]


def test_every_python_that_the_package_names_is_tested_for_each_change_and_no_other():
    classifiers = PYPROJECT["project"]["classifiers"]
    named = [name for text in classifiers if "." in (name := text.rpartition("Python :: ")[2])]
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert ci["jobs"]["tests"]["strategy"]["matrix"]["python"] == named
    assert PYPROJECT["project"]["requires-python"] == f">={named[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == named[0]


def test_a_commit_is_checked_by_the_ruff_that_the_tests_use():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    [revision] = [repo["rev"] for repo in hooks["repos"] if "ruff" in repo["repo"]]
    requirements = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["test"])
    [allowed] = [line.specifier for line in requirements if line.name == "ruff"]
    assert revision.removeprefix("v") in allowed


def test_each_form_has_a_title_and_a_question_that_needs_an_answer():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) == 3
    for form in forms:
        content = yaml.safe_load(form.read_text())
        assert {"name", "description"} <= content.keys()
        assert any(entry.get("validations", {}).get("required") for entry in content["body"])
