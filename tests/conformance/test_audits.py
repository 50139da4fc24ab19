"""What every database must hold of audits: claimed once, decided once, and settled."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from cutting import partial_changes, run_twice

from sweeper.db.attempts import Ending
from sweeper.db.audits import MOST_TRIES, AuditClaim, Audits, Pinned
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.errors import SupersededError
from sweeper.records.exactness import AuditRecord
from sweeper.spec.space import FloatRange

ROW = StudyRow(
    name="digits",
    definition={"epochs": 3},
    objective="val_accuracy",
    direction="maximize",
    target=12,
    window=None,
    seed=7,
)
ME = WorkerIdentity.here()
ELSEWHERE = replace(ME, host="another-machine")
KEY, OTHER = "a" * 32, "b" * 32


@pytest.fixture(autouse=True)
def _study(repository: Repository) -> None:
    repository.create_or_open(ROW)
    repository.join("digits", ME, key=KEY)


@pytest.fixture
def audits(database: Database) -> Audits:
    return Audits(database)


def take(repository: Repository, worker: WorkerIdentity = ME) -> Claim:
    claimed = repository.claim("digits", worker, lambda n: n, worker_key=KEY)
    assert isinstance(claimed, Claim)
    return claimed


def interval(begin: int = 0, end: int = 20, *, problem: str | None = None) -> Pinned:
    directory = f"/runs/{begin}-{end}"
    path = None if begin == 0 else f"{directory}/from"
    return Pinned(begin, end, 1, ME.host, directory, path, f"{directory}/to", problem)


def ask(audits: Audits, key: str | None = None, **wanted: object) -> AuditClaim | None:
    given = {"worker_key": KEY, "host": ME.host, "unbounded": True, **wanted}
    return audits.claim("digits", key=key or uuid.uuid4().hex, **given)  # type: ignore[arg-type]


def got(audits: Audits, **wanted: object) -> AuditClaim:
    claim = ask(audits, **wanted)
    assert claim is not None
    return claim


def first_trial(repository: Repository, audits: Audits) -> Claim:
    claim = take(repository)
    assert audits.plan("digits", claim.number, drawn=False) == ("first", 0)
    return claim


# Which trial


def test_the_first_trial_is_audited_and_others_as_they_are_drawn(
    repository: Repository, audits: Audits
) -> None:
    first_trial(repository, audits)
    one, two = take(repository), take(repository)
    assert audits.plan("digits", one.number, drawn=False) == ("none", 0)
    assert audits.plan("digits", two.number, drawn=True) == ("drawn", 0)
    assert audits.plan("digits", two.number, drawn=False) == ("drawn", 0), "decided once"


def test_the_first_trial_is_the_first_though_another_asks_before_it(
    repository: Repository, audits: Audits
) -> None:
    first, other = take(repository), take(repository)
    assert audits.plan("digits", other.number, drawn=False) == ("none", 0)
    assert audits.plan("digits", first.number, drawn=False) == ("first", 0)


def test_after_a_first_trial_that_failed_too_early_the_next_one_is_the_first(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    repository.finish(first.token, Ending("failed", error="ValueError"))
    assert audits.plan("digits", take(repository).number, drawn=False) == ("first", 0)


def test_a_first_trial_that_goes_on_has_what_it_had(repository: Repository, audits: Audits) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    repository.finish(first.token, Ending("interrupted"))
    assert take(repository).number == first.number
    assert audits.plan("digits", first.number, drawn=False) == ("first", 1)


def test_no_other_trial_is_the_first_once_the_first_has_ended(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    assert not audits.is_settled("digits")
    repository.finish(first.token, Ending("complete", value=1.0))
    assert audits.is_settled("digits")


# An interval


def test_an_interval_is_recorded_once_and_by_the_current_attempt_alone(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    assert audits.add(first.token, interval())
    assert audits.add(first.token, interval()), "the same message, sent again"
    assert not audits.add(first.token, replace(interval(), directory="/runs/of-another-attempt"))
    repository.finish(first.token, Ending("interrupted"))
    with pytest.raises(SupersededError):
        audits.add(first.token, interval(20, 40))
    assert repository.trial("digits", 0).audits == (AuditRecord(0, 20),)


def test_an_interval_that_could_not_be_pinned_is_never_claimed(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    assert not audits.add(first.token, interval(problem="the disk is full"))
    assert ask(audits) is None
    (record,) = repository.trial("digits", 0).audits
    assert (record.outcome, record.alike, record.message) == ("dropped", None, "the disk is full")
    assert repository.trial("digits", 0).to_json()["audits"] == []


# A claim


def test_an_audit_is_claimed_once_with_all_that_a_replay_needs(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    repository.record_fingerprint(first.token, {"keras": "3"})
    repository.record_parameter(first.token, "rate", FloatRange(0, 1), 0.25)
    audits.add(first.token, interval(20, 40))
    claim = got(audits, key=OTHER)
    assert (claim.trial, claim.attempt, claim.tries) == (0, 1, 1)
    assert (claim.params, claim.fingerprint) == ({"rate": 0.25}, {"keras": "3"})
    assert claim.distributions == {"rate": FloatRange(0, 1)}
    assert claim.pinned == interval(20, 40)
    assert ask(audits) is None
    assert ask(audits, key=OTHER) == claim, "the answer was lost"


def test_two_workers_never_have_one_audit(repository: Repository, audits: Audits) -> None:
    first = first_trial(repository, audits)
    for step in range(6):
        audits.add(first.token, interval(step, step + 1))
    together = threading.Barrier(4)

    def all_of_one(_slot: int) -> list[int]:
        together.wait(30)
        found = []
        while (claim := ask(audits)) is not None:
            found.append(claim.id)
            audits.decide(claim, "alike", seconds=0.1)
        return found

    with ThreadPoolExecutor(4) as pool:
        taken = [audit for found in pool.map(all_of_one, range(4)) for audit in found]
    assert sorted(taken) == sorted(set(taken))
    assert len(taken) == 6
    exactness = repository.status("digits").exactness
    assert (exactness.intervals, exactness.alike, exactness.pending) == (6, 6, 0)


def test_what_is_pinned_on_another_machine_is_not_claimed_here(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, replace(interval(), host="another-machine"))
    assert ask(audits) is None
    assert ask(audits, host="another-machine") is not None


def test_an_audit_whose_worker_left_is_claimed_again_and_the_late_verdict_is_refused(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    repository.join("digits", ELSEWHERE, key=OTHER)
    late = got(audits, worker_key=OTHER)
    assert ask(audits) is None
    repository.leave(OTHER)
    again = got(audits)
    assert (again.id, again.tries) == (late.id, 2)
    with pytest.raises(SupersededError, match="belongs to another worker"):
        audits.decide(late, "differs", seconds=1.0, report={"message": "late"})
    audits.decide(again, "alike", seconds=2.0)
    with pytest.raises(SupersededError):
        audits.decide(late, "differs", seconds=1.0)
    assert repository.trial("digits", 0).audits == (AuditRecord(0, 20, "alike", 2.0, None),)


def test_an_audit_whose_process_is_dead_is_claimed_again(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    repository.join("digits", replace(ME, pid=2**22 + 1), key=OTHER)
    got(audits, worker_key=OTHER)
    assert got(audits).tries == 2


def test_an_audit_that_is_given_back_is_free_and_counts_its_tries(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    for tries in range(1, MOST_TRIES + 1):
        claim = got(audits)
        assert claim.tries == tries
        audits.release(claim)
    audits.decide(got(audits), "dropped", seconds=0.0, report={"message": "it dies"})
    assert ask(audits) is None


def test_a_verdict_is_written_once_whatever_happens_to_its_commit(
    repository: Repository, audits: Audits, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    claim = got(audits)
    statements, partial = partial_changes(
        database, lambda: audits.decide(claim, "alike", seconds=1.0)
    )
    assert statements
    assert not partial
    audits.add(first.token, interval(20, 40))
    other = got(audits)
    run_twice(
        monkeypatch,
        repository,
        lambda: audits.decide(other, "differs", seconds=1.0, report={"message": "no"}),
    )
    assert [a.outcome for a in repository.trial("digits", 0).audits] == ["alike", "differs"]


# The share of the study's time


def later_interval(repository: Repository, audits: Audits) -> None:
    first = first_trial(repository, audits)
    repository.finish(first.token, Ending("complete", value=1.0))
    drawn = take(repository)
    assert audits.plan("digits", drawn.number, drawn=True) == ("drawn", 0)
    audits.add(drawn.token, interval(20, 40))


def test_a_later_interval_waits_until_the_study_has_time_for_it(
    repository: Repository, audits: Audits, database: Database
) -> None:
    later_interval(repository, audits)
    first = take(repository)
    audits.add(first.token, interval(0, 20))
    audits.decide(got(audits), "alike", seconds=30.0)
    assert ask(audits, unbounded=False) is None
    assert ask(audits, first_only=True) is None
    longer_ago(database, 3000)
    assert ask(audits, unbounded=False, waited=1e6) is None, "it may still find an idle slot"
    assert ask(audits, unbounded=False) is not None


def test_what_is_left_at_the_end_is_dropped_and_its_directories_are_reported(
    repository: Repository, audits: Audits
) -> None:
    later_interval(repository, audits)
    assert audits.directories_in_use("digits") == {"/runs/20-40"}
    assert audits.drop_rest("digits", "another-machine", "no time") == ()
    assert audits.drop_rest("digits", ME.host, "no time") == ("/runs/20-40",)
    assert audits.directories_in_use("digits") == set()
    assert repository.trial("digits", 1).audits[0].outcome == "dropped"


def longer_ago(database: Database, seconds: float) -> None:
    """Let every attempt have begun so much earlier."""
    earlier = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', started_at, '-{seconds} seconds')",
        "postgresql": f"started_at - make_interval(secs => {seconds})",
    }[database._engine.dialect.name]
    database.write(
        lambda c: c.exec_driver_sql(f"UPDATE sweeper_attempts SET started_at = {earlier}")
    )


# What it comes to


def test_a_difference_is_reported_first_and_accepted_for_the_whole_study(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    assert repository.status("digits").exactness.line == "exactness: nothing audited yet"
    for step in (0, 20, 40):
        audits.add(first.token, interval(step, step + 20))
    audits.decide(got(audits), "alike", seconds=1.0)
    audits.decide(got(audits), "differs", seconds=1.0, report={"message": "weights differ"})
    audits.decide(got(audits), "differs", seconds=1.0, report={"message": "more differ"})
    status = repository.status("digits")
    assert status.to_json()["audited"] == {"intervals": 3, "alike": 1}
    assert status.exactness.line == (
        "exactness: 1 of 3 audited intervals alike; exactness is not promised: an audit found that "
        "weights differ"
    )
    assert not status.exactness.accepted
    audits.accept_inexact("digits")
    assert repository.status("digits").exactness.accepted
    assert repository.trial("digits", 0).to_json()["audits"] == [
        {"from_step": 0, "to_step": 20, "alike": True},
        {"from_step": 20, "to_step": 40, "alike": False},
        {"from_step": 40, "to_step": 60, "alike": False},
    ]


def test_an_accepted_change_of_the_definition_drops_what_is_still_to_be_compared(
    repository: Repository, audits: Audits
) -> None:
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    repository.accept_definition(replace(ROW, definition={"epochs": 4}))
    assert ask(audits) is None
    assert repository.trial("digits", 0).audits[0].outcome == "dropped"


def test_why_nothing_is_audited_is_said(repository: Repository) -> None:
    for name, definition, line in (
        ("fast", {"deterministic": False}, "the study has deterministic=False"),
        ("off", {"audit": "off"}, 'not audited (audit="off")'),
    ):
        repository.create_or_open(replace(ROW, name=name, definition=definition))
        assert line in repository.status(name).exactness.line


def test_the_policy_of_auditing_is_no_part_of_what_a_study_is(repository: Repository) -> None:
    repository.create_or_open(replace(ROW, definition={**ROW.definition, "audit": "all"}))


def test_no_two_rows_are_of_one_interval(
    repository: Repository, audits: Audits, database: Database
) -> None:
    """The last defence: negative control of the look before the insert."""
    first = first_trial(repository, audits)
    audits.add(first.token, interval())
    copy = (
        "INSERT INTO sweeper_audits (trial_id, attempt, from_step, to_step, to_epoch, host, "
        "directory, to_path, created_at, tries) SELECT trial_id, attempt, from_step, to_step, "
        "to_epoch, host, directory, to_path, created_at, tries FROM sweeper_audits"
    )
    with pytest.raises(sa.exc.IntegrityError):
        database.write(lambda c: c.exec_driver_sql(copy))
