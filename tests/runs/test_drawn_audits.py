"""Which trials are audited: the first, and later ones as they are drawn, within 5% of the time."""

from types import SimpleNamespace

import pytest

from sweeper.db.verdicts import AuditCosts
from sweeper.run.auditing import _is_due

TRIALS = range(1, 4001)


def sweep(audit, attempt, *, first="complete", seed=0):
    """Return the context of a worker whose study's audits and attempts took so many seconds on average."""
    repository = SimpleNamespace(
        audit_costs=lambda _study: AuditCosts(audit, attempt),
        trial=lambda _study, _number: SimpleNamespace(state=first),
    )
    settings = SimpleNamespace(name="digits", seed=seed)
    study = SimpleNamespace(impatient=repository, settings=settings)
    return SimpleNamespace(study=study, ask=lambda call: call())


@pytest.mark.parametrize(("audit", "attempt"), [(3.0, 3.0), (2.0, 10.0), (5.0, 1.0)])
def test_audits_of_drawn_trials_take_a_twentieth_of_the_time(audit, attempt):
    drawn = [number for number in TRIALS if _is_due(sweep(audit, attempt), number)]
    share = len(drawn) * audit / (len(TRIALS) * attempt)
    assert share == pytest.approx(0.05, abs=0.015)
    assert drawn == [number for number in TRIALS if _is_due(sweep(audit, attempt), number)]
    other = [number for number in TRIALS if _is_due(sweep(audit, attempt, seed=1), number)]
    assert drawn != other, "another study draws other trials"


def test_the_first_trial_is_always_audited_whatever_it_costs_and_every_one_where_it_is_cheap():
    assert _is_due(sweep(1e9, 1.0), 0)
    assert not any(_is_due(sweep(1e9, 1.0), number) for number in TRIALS), "the control"
    assert all(_is_due(sweep(0.01, 1.0), number) for number in TRIALS[:100])


@pytest.mark.parametrize(("first", "due"), [("failed", True), ("running", False)])
def test_the_next_trial_stands_in_for_a_first_one_that_failed(first, due):
    assert _is_due(sweep(None, 1.0, first=first), 3) is due
