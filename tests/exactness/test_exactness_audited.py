"""The second line of defence alone: with the walk switched off, audits find by its effect what it would capture."""

import pytest
from exactness_list import CORPUS, find
from exactness_verdicts import judge, run


def audit(study, runs, *, first_line):
    """Train with an audit of every epoch; return what the audits found, or ""."""
    _, error = run(study, runs, audit="all", every=study.steps, first_line=first_line)
    return error if error and error.startswith("ExactnessError") else ""


def check(study, directory):
    """Return whether the study acts by what the walk would capture; then audits catch it, and else nothing."""
    acts = judge(study, directory / "killed", 1, first_line=False).outcome == "silent"
    caught = audit(study, directory / "alone", first_line=False)
    print(f"{study.name}: {'acts' if acts else 'does not act'}; audits: {caught[:200] or 'alike'}")
    assert caught or not acts
    assert audit(study, directory / "both", first_line=True) == ""
    return acts


@pytest.mark.whole
@pytest.mark.parametrize("name", ["loss-closure-counter", "module-level-state"])
def test_audits_alone_catch_what_acts_in_a_closure_and_in_a_module(name, tmp_path):
    assert check(find(name), tmp_path)


@pytest.mark.soak
def test_audits_alone_catch_whatever_acts_in_the_whole_corpus(tmp_path):
    assert sum(check(study, tmp_path / study.name) for study in CORPUS)
