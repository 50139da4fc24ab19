"""The self-test of an environment whose versions nobody tested, and what keeps its result."""

import sys
from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import sweep

from sweeper.errors import ExactnessError
from sweeper.run import self_test
from sweeper.run.self_test import PROGRAM, prove_environment, run_self_test
from sweeper.support import versions
from sweeper.support.versions import Environment, SelfTestResult, keep_result, kept_result

_PLANTED = """
from sweeper.api.self_test import study
from sweeper.train.randomness import generators

found = [c for c in vars(generators).values() if getattr(c, "name", "") == "global_seed_generator"]
for component in found:
    component.restore = lambda self, saved, tensors: None
assert found
"""
"""The self-test's study under a Keras whose global seed generator cannot be restored."""


@pytest.fixture
def unknown(monkeypatch, tmp_path):
    """Fake an environment that the matrix does not cover, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(versions, "TESTED", frozenset())
    return Environment.current()


def test_a_study_under_unknown_versions_is_preceded_by_one_self_test(
    unknown, tmp_path, monkeypatch
):
    # That the program itself runs and compares is shown by the planted one below.
    passed = SelfTestResult(unknown, 1.0)
    monkeypatch.setattr(self_test, "run_self_test", lambda _environment: passed)
    file = SHORT.write(tmp_path / "study.py")
    first = sweep(file, tmp_path / "runs", workers=1, trials=1)
    told = [text for event in first.events if (text := getattr(event, "message", ""))]
    assert any("self-test begins" in text and unknown.keras in text for text in told)
    assert any("self-test passed" in text for text in told)
    assert kept_result(unknown).passed
    second = sweep(file, tmp_path / "runs", workers=1, trials=2)
    assert not any("self-test" in getattr(event, "message", "") for event in second.events)
    assert second.results.status.complete == 2


@pytest.mark.whole
def test_a_planted_incompatibility_fails_the_self_test_by_name(unknown, monkeypatch, tmp_path):
    file = tmp_path / "planted.py"
    file.write_text(_PLANTED)
    words = [str(file) if word == "sweeper.api.self_test" else word for word in PROGRAM]
    planted = run_self_test(unknown, words)
    assert not planted.passed
    assert any("drawn" in difference for difference in planted.differences), planted.differences
    monkeypatch.setattr(self_test, "run_self_test", lambda _environment: planted)
    with pytest.raises(ExactnessError, match="drawn") as refused:
        prove_environment(lambda _text: None)
    assert refused.value.exit_code == 4
    told = []
    prove_environment(told.append, accept=True)
    assert any("drawn" in text for text in told)


@pytest.mark.whole
def test_the_program_of_the_self_test_passes_here(unknown):
    assert run_self_test(unknown).passed


def test_a_program_that_fails_is_no_proof(unknown):
    result = run_self_test(unknown, [sys.executable, "-c", "import nothing_of_this_name"])
    assert not result.passed
    assert "nothing_of_this_name" in result.differences[0]


def test_a_tested_environment_runs_no_self_test(monkeypatch):
    monkeypatch.setattr(self_test, "run_self_test", lambda _environment: pytest.fail("it ran"))
    assert Environment.current().tested
    prove_environment(pytest.fail)


def test_a_result_is_kept_by_version_and_a_torn_one_counts_as_none(unknown, tmp_path):
    assert keep_result(SelfTestResult(unknown, 1.0)) == ""
    assert kept_result(unknown) == SelfTestResult(unknown, 1.0)
    assert kept_result(replace(unknown, keras="3.99.0")) is None
    [file] = (tmp_path / "cache" / "sweeper").iterdir()
    file.write_text('{"seconds": 1')
    assert kept_result(unknown) is None
