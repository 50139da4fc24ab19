"""Which trials are audited: the first, and later ones as they are drawn, within 5% of the time."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from sweeper.run.auditing import _is_due

TRIALS = range(1, 4001)
JOINED = datetime(2026, 1, 1, tzinfo=UTC)


def sweep(audit, attempt, *, first="complete", ended=1, seed=0):
    """Return the context of a worker whose study's audits and attempts took so many seconds on average.

    The first trial's last attempt ended ``ended`` seconds after the worker joined.
    """
    attempts = [SimpleNamespace(ended_at=JOINED + timedelta(seconds=ended))]
    repository = SimpleNamespace(
        audit_costs=lambda _study: (audit, attempt),
        trial=lambda _study, _number: SimpleNamespace(state=first, attempts=attempts),
        workers=lambda _study: [
            SimpleNamespace(key="earlier", joined_at=JOINED - timedelta(hours=1)),
            SimpleNamespace(key="own", joined_at=JOINED),
        ],
    )
    settings = SimpleNamespace(name="digits", seed=seed)
    study = SimpleNamespace(impatient=repository, settings=settings)
    row = SimpleNamespace(key="own")
    return SimpleNamespace(study=study, worker_row=row, ask=lambda call: call())


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


@pytest.mark.parametrize(
    ("first", "ended", "due"),
    [
        *(("failed", 1, True), ("running", -1, False)),
        # Under this worker it is being audited now; under an earlier one the audit was stopped.
        *(("complete", 1, False), ("complete", -1, True)),
    ],
)
def test_the_next_trial_stands_in_for_a_first_one_without_an_audit(first, ended, due):
    assert _is_due(sweep(None, 1.0, first=first, ended=ended), 3) is due
