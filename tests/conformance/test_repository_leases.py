"""What every database must hold of leases and requests: the same promises on each of them."""

import time
from dataclasses import replace

import pytest
from cutting import cut_off_after
from optuna_view import optuna_trials
from stored_study import ME, ROW, why_waiting
from stored_study import take as take_as

from sweeper.db import leases
from sweeper.db.attempts import Ending
from sweeper.db.repository import LostAttempt
from sweeper.errors import SupersededError, UnknownStudyError, UsageError
from sweeper.records.results import EpochRecord

ELSEWHERE = replace(ME, host="another-machine")
KEY = "a" * 32
OTHER = "b" * 32


pytestmark = pytest.mark.usefixtures("digits")


def take(repository, worker=ELSEWHERE, seconds=60.0):
    return take_as(repository, worker=worker, lease_seconds=seconds)


def set_back(database, seconds):
    """Let ``seconds`` pass on the database's clock: every time in it is so much longer ago."""
    earlier = {
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {0}, '-{1} seconds')",
        "postgresql": "{0} - make_interval(secs => {1})",
    }[database._engine.dialect.name]

    def change(connection):
        for table, columns in {
            "sweeper_attempts": ("started_at", "lease_until"),
            "sweeper_workers": ("joined_at", "lease_until", "present_since"),
        }.items():
            new = ", ".join(f"{c} = {earlier.format(c, seconds)}" for c in columns)
            connection.exec_driver_sql(f"UPDATE {table} SET {new}")

    database.write(change)


# A lease


def test_an_attempt_elsewhere_is_lost_when_its_lease_has_ended_and_not_before(repository, database):
    token = take(repository).token
    set_back(database, 55)
    assert repository.release_lost("digits") == ()
    assert repository.status("digits").running == 1
    set_back(database, 10)
    assert repository.status("digits").interrupted == 1
    assert repository.trial("digits", 0).attempts[0].outcome == "lost"
    assert repository.release_lost("digits") == (LostAttempt(0, 1),)
    assert take(repository).attempt == 2
    with pytest.raises(SupersededError, match="ended as lost"):
        repository.record_epochs(token, [EpochRecord(0, {"loss": 1.0})])
    assert repository.renew([token], 60) == frozenset()


def test_a_renewed_lease_holds_for_as_long_again(repository, database):
    renewed = take(repository).token
    lapsed = take(repository).token
    for _ in range(3):
        set_back(database, 40)
        assert repository.renew([renewed], 60) == {renewed}
    assert repository.release_lost("digits") == (LostAttempt(1, 1),)
    assert repository.renew([renewed, lapsed], 60) == {renewed}
    assert repository.renew([], 60) == frozenset()
    # One that has ended is renewed while nobody has taken the trial.
    set_back(database, 600)
    assert repository.renew([renewed], 60) == {renewed}
    assert repository.release_lost("digits") == ()
    repository.finish(renewed, Ending("complete", value=1.0))


def test_a_lease_renewed_between_the_look_and_the_release_is_kept(repository, database):
    token = take(repository).token
    set_back(database, 61)
    suspects = database.read(lambda c: leases.suspects(c, "digits", None, 60))
    assert [suspect.token for suspect in suspects] == [token]
    repository.renew([token], 60)
    assert database.write(lambda c: leases.close_lost(c, suspects)) == ()
    set_back(database, 61)
    assert database.write(lambda c: leases.close_lost(c, suspects)) == (LostAttempt(0, 1),)


# Who may judge


def renew_worker(repository, key):
    repository.renew([], 60, worker_key=key)


def contact(repository, database, seconds, every):
    """Let the observer be in contact for so long, renewing now and then."""
    for _ in range(round(seconds / every)):
        set_back(database, every)
        renew_worker(repository, KEY)


@pytest.mark.parametrize(
    ("cut_off", "then", "released"),
    [(0, 0, True), (300, 0, False), (300, 45, False), (300, 60, True), (35, 0, False)],
    ids=["never cut off", "just back", "back for less", "back for long", "short of its own lease"],
)
def test_only_a_worker_in_unbroken_contact_judges_an_ended_lease(
    repository, database, cut_off, then, *, released
):
    """After an outage every lease has ended, and whoever is back first must not take them all."""
    repository.join("digits", ME, key=KEY, lease_seconds=60)
    contact(repository, database, 120, 15)
    take(repository, seconds=0.0)
    if cut_off:
        set_back(database, cut_off)
        renew_worker(repository, KEY)
    contact(repository, database, then, 15)
    time.sleep(0.002)
    lost = repository.release_lost("digits", observer=KEY, lease_seconds=60)
    assert bool(lost) is released
    # Somebody who is no worker, and the control of this test, judges at once.
    assert bool(repository.release_lost("digits")) is not released


def test_a_worker_that_has_just_joined_waits_and_one_that_does_not_renew_never_judges(
    repository, database
):
    repository.join("digits", ME, key=KEY, lease_seconds=60)
    take(repository, seconds=0.0)
    time.sleep(0.002)
    assert repository.release_lost("digits", observer=KEY, lease_seconds=60) == ()
    assert repository.release_lost("digits", observer=OTHER, lease_seconds=60) == ()
    set_back(database, 70)
    assert repository.release_lost("digits", observer=KEY, lease_seconds=60) == ()
    take(repository, worker=replace(ME, started=0.0))
    lost = repository.release_lost("digits", observer=KEY)
    assert lost == (LostAttempt(1, 1),), "a dead process of this host needs no judge"


# Workers


def test_workers_join_renew_and_leave(repository, database):
    repository.join("digits", ME, key=KEY, engine="dask", slots=3, lease_seconds=60)
    repository.join("digits", ELSEWHERE, key=OTHER, lease_seconds=60)
    repository.join("digits", replace(ME, started=0.0), key="c" * 32)
    here, other, dead = repository.workers("digits")
    assert (here.key, here.engine, here.slots) == (KEY, "dask", 3)
    assert (here.host, here.pid) == (ME.host, ME.pid)
    assert (here.live, other.live, dead.live) == (True, True, False)
    assert (here.lease_until - here.joined_at).total_seconds() == pytest.approx(60, abs=1)
    set_back(database, 61)
    # A process of this host that is there is late, not gone.
    assert [w.live for w in repository.workers("digits")] == [True, False, False]
    renew_worker(repository, OTHER)
    assert repository.workers("digits")[1].live
    repository.leave(KEY)
    repository.leave(OTHER, "the disk is full")
    repository.leave(OTHER, "a second word")
    workers = repository.workers("digits")
    assert [w.live for w in workers] == [False] * 3
    assert [w.error for w in workers] == [None, "the disk is full", None]
    assert workers[0].left_at is not None
    assert workers[2].left_at is None
    renew_worker(repository, KEY)
    assert not repository.workers("digits")[0].live, "who has left does not come back by renewing"
    repository.join("digits", ME, key=KEY)
    assert repository.workers("digits")[0].live
    assert workers[1].to_json()["error"] == "the disk is full"


def test_a_claim_names_its_worker_and_devices(repository, database):
    repository.claim("digits", ME, lambda n: n, worker_key=KEY, devices="0,1")
    row = database.read(
        lambda c: c.exec_driver_sql("SELECT worker_key, devices FROM sweeper_attempts").one()
    )
    assert tuple(row) == (KEY, "0,1")


# Requests


def test_a_request_to_stop_is_seen_stops_claims_and_is_forgotten(repository):
    repository.create_or_open(replace(ROW, name="another"))
    assert repository.stop_requested("digits") is None
    repository.request_stop("digits", "drain")
    assert repository.stop_requested("digits") == "drain"
    assert repository.stop_requested("another") is None
    assert "asked to stop" in why_waiting(repository)
    repository.request_stop("digits", "kill")
    assert repository.stop_requested("digits") == "kill"
    repository.clear_stop("digits")
    repository.clear_stop("digits")
    assert repository.stop_requested("digits") is None
    assert take(repository).number == 0
    for ask in (repository.clear_stop, lambda s: repository.request_stop(s, "kill")):
        with pytest.raises(UnknownStudyError):
            ask("nothing")


def fail(repository, number):
    claimed = take(repository)
    assert claimed.number == number
    repository.finish(claimed.token, Ending("crashed"))
    resumed = take(repository)
    assert (resumed.number, resumed.crashes) == (number, 1)
    repository.finish(resumed.token, Ending("crashed", error="killed", final=True))


def test_a_failed_trial_is_given_another_attempt_and_keeps_its_number(repository, database):
    fail(repository, 0)
    assert take(repository).number == 1
    repository.retry("digits", 0)
    assert repository.trial("digits", 0).state == "interrupted"
    assert [t.state.name for t in optuna_trials(database)] == ["RUNNING"] * 2
    retried = take(repository)
    assert (retried.number, retried.attempt, retried.crashes) == (0, 3, 0)
    repository.finish(retried.token, Ending("complete", value=0.5))
    assert repository.trial("digits", 0).value == 0.5
    assert optuna_trials(database)[0].state.name == "COMPLETE"


@pytest.mark.parametrize("state", ["complete", "pruned", "interrupted", "running"])
def test_only_a_failed_trial_is_tried_again(repository, state):
    token = take(repository).token
    if state != "running":
        repository.finish(token, Ending(state, value=1.0))
    trial = repository.trial("digits", 0)
    with pytest.raises(
        UsageError, match=f"trial 0 of study 'digits' is {state}, and only a failed"
    ):
        repository.retry("digits", 0)
    assert repository.trial("digits", 0) == trial
    with pytest.raises(UnknownStudyError, match="no trial 3; it has trial 0 "):
        repository.retry("digits", 3)


def test_a_finish_tried_again_by_its_worker_is_one_finish(repository):
    """The worker's own second try, after the database said nothing to the first."""
    token = take(repository).token
    repository.finish(token, Ending("complete", value=0.25))
    repository.finish(token, Ending("complete", value=0.25), again=True)
    assert repository.trial("digits", 0).value == 0.25
    with pytest.raises(SupersededError):
        repository.finish(token, Ending("complete", value=0.25))
    with pytest.raises(SupersededError):
        repository.finish(token, Ending("failed"), again=True)


# Costs


def test_a_claim_takes_few_statements(repository, database):
    """Each is a round trip under the study's lock, which all workers of a study queue for."""
    for _ in range(2):
        with cut_off_after(database, -1) as run:
            take(repository)
        assert len(run) <= 10
