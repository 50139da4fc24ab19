"""What every database must hold of audits: one verdict an interval, of the present attempt, and what they come to."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from stored_study import ROW, defined, take

from sweeper.db.attempts import Ending
from sweeper.errors import SupersededError
from sweeper.records.exactness import AuditRecord

pytestmark = pytest.mark.usefixtures("digits")


def ended(repository, outcome="complete"):
    """Run one attempt to its end; return the trial's number."""
    claim = take(repository)
    value = 0.5 if outcome == "complete" else None
    repository.finish(claim.token, Ending(outcome, 60, value, "d" * 32))
    return claim.number


def record(repository, *, begin=20, attempt=1, outcome="identical", seconds=2.0, message=None):
    """Record an audit of the first trial."""
    audit = AuditRecord(begin, begin + 20, outcome, seconds)
    report = {} if message is None else {"message": message}
    repository.record_audit("digits", 0, attempt, audit, report)


def test_a_verdict_that_is_stored_again_is_one_row(repository, database):
    ended(repository)
    record(repository)
    record(repository)
    assert repository.trial("digits", 0).audits == (AuditRecord(20, 40, "identical", 2.0),)
    copy = (
        "INSERT INTO sweeper_audits (trial_id, from_step, to_step, outcome, seconds, decided_at, "
        "report) SELECT trial_id, from_step, to_step, outcome, seconds, decided_at, report "
        "FROM sweeper_audits"
    )
    with pytest.raises(sa.exc.IntegrityError):  # the control of the deletion before the insert
        database.write(lambda c: c.exec_driver_sql(copy))


def test_a_verdict_of_an_attempt_that_is_not_the_present_one_is_refused(repository):
    """A worker that was stopped for long comes back after the trial was begun again elsewhere."""
    ended(repository, "interrupted")
    ended(repository)
    with pytest.raises(SupersededError, match="is of attempt 1, and attempt 2 has begun"):
        record(repository, attempt=1)
    assert repository.trial("digits", 0).audits == ()
    record(repository, attempt=2)
    assert repository.status("digits").exactness.intervals == 1


def test_a_difference_is_reported_first_and_accepted_for_the_whole_study(repository):
    ended(repository)
    assert repository.status("digits").exactness.line == "exactness: nothing audited yet"
    record(repository, begin=0)
    for begin, message in ((20, "weights differ"), (40, "more differ")):
        record(repository, begin=begin, outcome="differs", message=message)
    status = repository.status("digits")
    assert status.to_json()["audited"] == {"intervals": 3, "identical": 1}
    assert status.exactness.line == (
        "exactness: 1 of 3 audited intervals identical; exactness is not promised: an audit found that "
        "weights differ"
    )
    assert not status.exactness.accepted
    repository.accept_inexact("digits")
    assert repository.status("digits").exactness.accepted
    assert repository.trial("digits", 0).to_json()["audits"] == [
        {"from_step": 0, "to_step": 20, "identical": True},
        {"from_step": 20, "to_step": 40, "identical": False},
        {"from_step": 40, "to_step": 60, "identical": False},
    ]


def test_an_audit_without_a_verdict_is_not_counted(repository):
    ended(repository)
    record(repository, outcome="dropped", message="a damaged checkpoint")
    assert repository.status("digits").exactness.intervals == 0
    (audit,) = repository.trial("digits", 0).audits
    assert (audit.identical, audit.message) == (None, "a damaged checkpoint")


def test_what_audits_and_attempts_took_on_average(repository):
    assert repository.audit_costs("digits") == (None, None)
    ended(repository)
    record(repository)
    record(repository, begin=40, seconds=4.0)
    audit, attempt = repository.audit_costs("digits")
    assert audit == 3.0
    assert 0 <= attempt < 60


def test_why_nothing_is_audited_is_said(repository):
    for name, definition, line in (
        ("fast", {"deterministic": False}, "the study has deterministic=False"),
        ("off", {"audit": "off"}, 'not audited (audit="off")'),
    ):
        repository.create_or_open(replace(ROW, name=name, definition=definition))
        assert line in repository.status(name).exactness.line
    # The policy of auditing is no part of what a study is.
    repository.create_or_open(defined(audit="all"))
