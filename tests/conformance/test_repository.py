"""What every database must hold of a repository: the same promises on SQLite and PostgreSQL."""

import math
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from cutting import cut_off_after, every_row, partial_changes, run_twice
from optuna_view import as_optuna_sees_it, optuna_storage, optuna_trials
from stored_study import ME, ROW, defined, seed, take, why_waiting

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, LostAttempt, StudyRow
from sweeper.db.tables import Attempt
from sweeper.declarations.space import Categorical, FloatRange, IntRange
from sweeper.errors import (
    DefinitionChangedError,
    DefinitionError,
    NonFiniteError,
    ParameterError,
    StorageError,
    SupersededError,
    UnknownStudyError,
)
from sweeper.records.lengths import Extension
from sweeper.records.results import CheckpointRecord, EpochRecord, leading

KEY = "a" * 32
MACHINE, BOOT, NAMESPACE = ME.boot_id.split("/")
CHECKPOINT = CheckpointRecord(step=56, epoch=1, digest="ab" * 16, bytes=4096, path="a/step-56")
BEGAN = datetime.fromisoformat("2026-01-02T03:04:05")


# The total is exact, and every trial is claimed once


def test_a_total_raised_later_adds_exactly_that_many_trials(repository):
    repository.create_or_open(replace(ROW, target=1))
    repository.finish(take(repository).token, Ending("complete", value=1.0))
    assert repository.claim("digits", ME, seed) is None
    assert repository.set_target("digits", 2).target == 2
    assert take(repository).number == 1
    assert why_waiting(repository)
    with pytest.raises(DefinitionError, match=r"trials=1, but 2 trials .*have begun"):
        repository.set_target("digits", 1)


def test_interrupted_trials_are_claimed_first_and_the_lowest_of_them(digits):
    first, second, third = (take(digits) for _ in range(3))
    digits.record_parameter(second.token, "rate", FloatRange(0, 1), 0.25)
    for claimed in (third, second):
        digits.finish(claimed.token, Ending("interrupted", end_step=5))
    resumed = take(digits)
    assert (resumed.number, resumed.attempt, resumed.seed, resumed.params) == (
        1,
        2,
        1001,
        {"rate": 0.25},
    )
    assert resumed.optuna_trial_id == second.optuna_trial_id
    assert resumed.token > third.token
    assert [take(digits).number for _ in range(2)] == [2, 3]
    assert digits.status("digits").running == 4
    digits.finish(first.token, Ending("complete", value=0.5))


def test_no_more_trials_run_at_once_than_the_concurrency_however_far_they_look_back(repository):
    repository.create_or_open(replace(defined(concurrency=2), target=6, window=3))
    first = take(repository)
    second = take(repository)
    assert "2 trials are running (concurrency=2)" in why_waiting(repository)
    repository.finish(second.token, Ending("complete", value=0.5))
    third = take(repository)
    assert third.number == 2, "a slow trial does not hold up the next one"
    repository.finish(third.token, Ending("complete", value=0.5))
    assert "trial 3 uses the result of trial 0" in why_waiting(repository)
    repository.finish(first.token, Ending("interrupted"))
    assert take(repository).number == 0


def test_a_crash_is_counted_and_a_final_one_fails_the_trial(digits, database):
    digits.finish(take(digits).token, Ending("crashed", error="killed by signal 9"))
    resumed = take(digits)
    assert (resumed.number, resumed.crashes, resumed.attempt) == (0, 1, 2)
    digits.finish(resumed.token, Ending("crashed", error="killed by signal 11", final=True))
    record = digits.trial("digits", 0)
    assert (record.state, record.error) == ("failed", "killed by signal 11")
    assert take(digits).number == 1
    with as_optuna_sees_it(database) as study:
        assert study.trials[0].state == optuna.trial.TrialState.FAIL


def test_a_claim_asked_for_again_is_one_claim_and_made_anew_once_it_was_given_up(digits):
    first = take(digits, key="the-same-key")
    assert take(digits, key="the-same-key") == first
    assert len(digits.trials("digits")) == 1
    assert take(digits).number == 1, "another key is another claim"
    digits.finish(first.token, Ending("interrupted"))
    other = take(digits)
    assert (other.number, other.attempt) == (0, 2)
    claim = take(digits, key="the-same-key")
    assert (claim.number, claim.attempt) == (2, 1), "the trial is another worker's by now"


# A superseded attempt can write nothing


WRITES = {
    "record_process": lambda r, t: r.record_process(t, 1, "fork", 0),
    "record_fingerprint": lambda r, t: r.record_fingerprint(t, {"keras": "3"}),
    "record_parameter": lambda r, t: r.record_parameter(t, "x", IntRange(1, 3), 2),
    "record_epochs": lambda r, t: r.record_epochs(t, [EpochRecord(0, {"loss": 1.0})], {0: 1.0}),
    "record_checkpoint": lambda r, t: r.record_checkpoint(t, replace(CHECKPOINT, path="late")),
    "forget_checkpoint": lambda r, t: r.forget_checkpoint(t, CHECKPOINT.path),
    "finish": lambda r, t: r.finish(t, Ending("complete", value=1.0)),
}


@pytest.fixture
def tokens(digits):
    """Give the token of an attempt that is superseded, and of the current one."""
    old = take(digits).token
    digits.record_checkpoint(old, CHECKPOINT)
    digits.finish(old, Ending("interrupted"))
    return old, take(digits).token


@pytest.mark.parametrize("write", WRITES)
def test_each_write_is_refused_to_a_superseded_attempt_and_granted_to_the_current_one(
    repository, database, tokens, write
):
    old, new = tokens
    rows = every_row(database)
    with pytest.raises(SupersededError, match=r"attempt 1 of trial 0 .*'digits'.* attempt is 2;"):
        WRITES[write](repository, old)
    assert every_row(database) == rows
    WRITES[write](repository, new)
    assert every_row(database) != rows


# A worker that is gone holds nothing


def test_the_attempt_of_a_killed_worker_is_released_at_once(digits):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        ticks = int(Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[19])
        started = ticks / os.sysconf("SC_CLK_TCK")
        token = take(digits, worker=replace(ME, pid=owner.pid, started=started)).token
        assert digits.release_lost("digits") == ()
        assert digits.status("digits").running == 1
        owner.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        assert digits.status("digits").interrupted == 1
        assert digits.trial("digits", 0).attempts[0].outcome == "lost"
        assert digits.release_lost("digits") == (LostAttempt(trial=0, attempt=1),)
    assert digits.release_lost("digits") == ()
    resumed = take(digits)
    assert (resumed.number, resumed.attempt) == (0, 2)
    with pytest.raises(SupersededError, match="ended as lost"):
        digits.finish(token, Ending("complete", value=1.0))


@pytest.mark.parametrize(
    ("worker", "released"),
    [
        (ME, False),
        (replace(ME, pid=2**22 + 1), True),
        (replace(ME, started=ME.started - 0.01), True),
        (replace(ME, boot_id=f"{MACHINE}/another-boot/{NAMESPACE}"), True),
        (replace(ME, boot_id=f"{MACHINE}/{BOOT}/1", started=0.0), False),
        (replace(ME, boot_id=f"another-machine/{BOOT}/{NAMESPACE}", started=0.0), False),
        (replace(ME, host="another-host", started=0.0), False),
    ],
    ids=["alive", "ended", "id used again", "rebooted", "namespace", "same name", "other host"],
)
def test_only_a_worker_known_to_be_gone_is_released(digits, worker, *, released):
    take(digits, worker=worker)
    assert bool(digits.release_lost("digits")) is released
    assert digits.status("digits").interrupted == int(released)


def test_a_lost_attempt_ended_at_the_newest_of_its_own_checkpoints(digits):
    """Not at one of another trial's or attempt's; without any, its last step is unknown."""
    gone = replace(ME, started=0.0)

    def commit(claimed, *steps):
        for step in steps:
            checkpoint = replace(CHECKPOINT, step=step, path=f"{claimed.number}/{step}")
            digits.record_checkpoint(claimed.token, checkpoint)

    first, other, _without = (take(digits, worker=gone) for _ in range(3))
    commit(first, 20, 60, 40)
    commit(other, 900)
    commit(take(digits), 5)
    digits.release_lost("digits")
    commit(take(digits, worker=gone), 50)
    digits.release_lost("digits")
    trials = digits.trials("digits")
    assert [[(a.outcome, a.end_step) for a in trial.attempts] for trial in trials] == [
        [("lost", 60), ("lost", 50)],
        [("lost", 900)],
        [("lost", None)],
        [(None, None)],
    ]
    assert trials[2].attempts[0].error.startswith("its worker was killed")


def test_an_attempt_released_by_two_workers_at_once_is_released_once(repository):
    repository.create_or_open(replace(ROW, target=20))
    for _ in range(20):
        take(repository, worker=replace(ME, started=0.0))
    barrier = threading.Barrier(4)

    def release(_worker):
        barrier.wait()
        return repository.release_lost("digits")

    with ThreadPoolExecutor(4) as pool:
        released = [lost.trial for part in pool.map(release, range(4)) for lost in part]
    assert sorted(released) == list(range(20))


# A state change is whole or not at all


def begun(repository):
    token = take(repository).token
    repository.record_epochs(token, [EpochRecord(0, {"loss": 3.0})], {0: 3.0})
    repository.record_checkpoint(token, CHECKPOINT)
    return token


def failed(repository):
    token = take(repository).token
    repository.finish(token, Ending("failed"))
    return token


def trained(repository):
    token = begun(repository)
    repository.finish(token, Ending("complete", value=1.0, digest="d"))
    return token


def joined(repository):
    repository.join("digits", ME, key=KEY)
    return begun(repository)


def stopped(repository):
    repository.request_stop("digits", "kill")
    return 0


CHANGES = {
    **{name: (2, begun, write) for name, write in WRITES.items()},
    "finish pruned": (2, begun, lambda r, t: r.finish(t, Ending("pruned", end_step=3))),
    "finish crashed": (2, begun, lambda r, t: r.finish(t, Ending("crashed", final=True))),
    "claim": (2, begun, lambda r, _t: r.claim("digits", ME, seed)),
    "create_or_open": (2, begun, lambda r, _t: r.create_or_open(replace(ROW, name="another"))),
    "set_target": (2, begun, lambda r, _t: r.set_target("digits", 9)),
    "extend": (5, trained, lambda r, _t: r.extend("digits", Extension(5))),
    "retry": (1, failed, lambda r, _t: r.retry("digits", 0)),
    "renew": (1, joined, lambda r, t: r.renew([t], 99, worker_key=KEY)),
    "leave": (1, joined, lambda r, _t: r.leave(KEY)),
    "join": (1, stopped, lambda r, _t: r.join("digits", ME, key="b" * 32)),
    "request_stop": (1, joined, lambda r, _t: r.request_stop("digits", "drain")),
    "clear_stop": (1, stopped, lambda r, _t: r.clear_stop("digits")),
}
"""The least number of its statements, what precedes it, and the change."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_cut_off_after_any_statement_leaves_nothing(digits, database, change):
    least, prepare, make = CHANGES[change]
    token = prepare(digits)
    statements, leaking = partial_changes(database, lambda: make(digits, token))
    assert statements >= least
    assert leaking == []


def test_the_cut_off_check_notices_writes_that_are_not_one_transaction(
    repository, database, monkeypatch
):
    def committing_whatever_happens(_self, engine, work):
        with engine.connect() as connection:
            try:
                return work(connection)
            finally:
                connection.commit()

    repository.create_or_open(ROW)
    monkeypatch.setattr(Database, "_transact", committing_whatever_happens)
    _, leaking = partial_changes(database, lambda: repository.claim("digits", ME, seed))
    assert leaking


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_commit_was_not_answered_is_run_again_without_harm(
    digits, monkeypatch, change
):
    _, prepare, make = CHANGES[change]
    token = prepare(digits)
    sizes = run_twice(monkeypatch, digits, lambda: make(digits, token))
    assert len(sizes) == 2
    assert sizes[0] == sizes[1]


# Optuna's tools see exactly the study


def test_optuna_shows_exactly_the_trials_that_sweeper_ran(repository, database):
    repository.create_or_open(replace(ROW, target=5))
    space = {
        "rate": FloatRange(1e-4, 1e-1, log=True),
        "units": IntRange(8, 65, step=8),
        "kind": Categorical(("relu", None, 1, True)),
    }
    drawn = [(1e-3, 16, None), (0.1, 64, True), (1 / 3e3, 8, 1), (1e-4, 8, "relu"), (1e-4, 8, 1)]
    tokens = []
    for number, point in enumerate(drawn):
        token = take(repository).token
        tokens.append(token)
        for (name, distribution), value in zip(space.items(), point, strict=True):
            recorded = repository.record_parameter(token, name, distribution, value)
            assert (recorded, type(recorded)) == (value, type(value))
        for epoch, objective in enumerate([0.1 * number, math.nan, math.inf, -math.inf, 0.7]):
            repository.record_epochs(token, [EpochRecord(epoch, {})], {epoch: objective})
    repository.finish(tokens[0], Ending("complete", value=0.1 + 0.2, digest="d0"))
    repository.finish(tokens[1], Ending("pruned"))
    repository.finish(tokens[2], Ending("failed", error="boom"))
    repository.finish(tokens[3], Ending("complete", value=-math.inf))
    repository.finish(tokens[4], Ending("interrupted"))

    with as_optuna_sees_it(database) as study:
        trials = study.trials
        assert study.direction == optuna.study.StudyDirection.MAXIMIZE
        assert study.best_trial.number == 0
    assert [t.number for t in trials] == [0, 1, 2, 3, 4]
    assert [t.state.name for t in trials] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE", "RUNNING"]
    assert [t.value for t in trials] == [0.1 + 0.2, 0.7, None, -math.inf, None]
    assert [tuple(t.params.values()) for t in trials[:2]] == drawn[:2]
    assert [list(t.params) for t in trials] == [list(space)] * 5
    assert trials[0].distributions["units"] == optuna.distributions.IntDistribution(8, 64, step=8)
    for number, trial in enumerate(trials):
        reported = trial.intermediate_values
        assert list(reported) == [0, 1, 2, 3, 4]
        assert math.isnan(reported.pop(1))
        assert reported == {0: 0.1 * number, 2: math.inf, 3: -math.inf, 4: 0.7}
        assert trial.datetime_start is not None
        assert (trial.datetime_complete is not None) == trial.state.is_finished()
    for trial in trials[:4]:
        trial._validate()


def test_an_ended_trial_has_its_attempts_digest_and_reason_and_no_sampler_reads_them(repository):
    def ended(*endings):
        for ending in endings:
            claim = take(repository)
            repository.record_process(claim.token, 1, "fork", 0)
            repository.finish(claim.token, ending)

    repository.create_or_open(TWO)
    complete = Ending("complete", 30, 0.5, "d" * 32, further_values=(1.0,))
    failed = Ending("failed", 5, error="Traceback\n  x\nValueError: no such layer\n")
    ended(Ending("crashed", 10, error="killed"), complete, failed, failed)
    repository.retry("digits", 2)
    ended(complete)
    with as_optuna_sees_it(repository.database) as study:
        assert study.metric_names == ["val_accuracy", "val_loss"]
        assert [trial.user_attrs for trial in study.get_trials()] == [
            {"attempts": 2, "digest": "d" * 32},
            {"attempts": 1, "failed because": "ValueError: no such layer"},
            {"attempts": 2, "digest": "d" * 32},
        ]
    observation = repository.finished_before("digits", 4)[0]
    assert (observation.value, observation.params, observation.intermediate) == (0.5, {}, {})
    assert "d" * 32 not in repr(observation)


def test_trials_that_a_tool_added_and_a_study_that_it_deleted_are_refused_by_name(digits, database):
    with as_optuna_sees_it(database) as study:
        study.enqueue_trial({"x": 1})
    with pytest.raises(StorageError, match="1 trials in Optuna's tables and 0 in sweeper's"):
        digits.claim("digits", ME, seed)
    with optuna_storage(database) as storage:
        optuna.delete_study(study_name="digits", storage=storage)
    with pytest.raises(StorageError, match="deleted by one of Optuna's tools"):
        digits.claim("digits", ME, seed)


def test_a_study_that_optuna_made_is_not_taken_over(repository, database):
    with optuna_storage(database) as storage:
        optuna.create_study(study_name="digits", storage=storage)
    with pytest.raises(DefinitionError, match="'digits' that Optuna made"):
        repository.create_or_open(ROW)


# Parameters, epochs and checkpoints come back as they were


def test_a_stored_parameter_wins_and_keeps_its_distribution(digits):
    first = take(digits)
    digits.record_parameter(first.token, "rate", FloatRange(0, 1), 0.25)
    digits.finish(first.token, Ending("interrupted"))
    token = take(digits).token
    assert digits.record_parameter(token, "rate", FloatRange(0.0, 1.0), 0.75) == 0.25
    assert digits.record_parameter(token, "rate", FloatRange(0.5, 2.0), 0.75) == 0.25
    assert digits.trial("digits", 0).distributions["rate"] == FloatRange(0, 1)
    with pytest.raises(ParameterError, match=r"'rate' is .* in trial 0"):
        digits.record_parameter(token, "rate", IntRange(0, 2), 1)
    with pytest.raises(
        ParameterError, match=r"outside of the suggested range FloatRange\(low=0, high=1"
    ):
        digits.record_parameter(token, "other", FloatRange(0, 1), 1.5)
    assert dict(digits.trial("digits", 0).params) == {"rate": 0.25}


def test_a_parameter_reads_none_of_the_others_of_its_trial(digits, database):
    """Each was read with all others before it: ten thousand took eight minutes."""
    token = take(digits).token
    with cut_off_after(database, -1) as run:
        digits.record_parameter(token, "rate", FloatRange(0, 1), 0.5)
    read = [statement for statement in run if "FROM trial_params" in statement]
    assert read
    assert all("param_name = " in statement for statement in read)


def test_ranges_and_choices_may_change_between_trials_and_kinds_may_not(digits):
    token = take(digits).token
    digits.record_parameter(token, "kind", Categorical((0, 1)), 1)
    digits.record_parameter(token, "rate", FloatRange(0, 1), 1.0)
    other = take(digits).token
    digits.record_parameter(other, "rate", FloatRange(0, 2), 2.0)
    digits.record_parameter(other, "kind", Categorical((False, True)), True)
    digits.record_parameter(token, "size", IntRange(0, 2), 2)
    with pytest.raises(ParameterError, match=r"'size' is .* in trial 0"):
        digits.record_parameter(other, "size", FloatRange(0, 2), 2.0)
    params = [trial.params for trial in optuna_trials(digits.database)]
    assert params == [{"kind": 1, "rate": 1.0, "size": 2}, {"rate": 2.0, "kind": True}]
    with pytest.raises(ParameterError, match=r"'rate' is .* in trial 1"):
        digits.record_parameter(take(digits).token, "rate", IntRange(0, 2), 2)


def test_metrics_and_a_pruned_value_come_back_and_a_repeated_epoch_replaces_the_first(digits):
    token = take(digits).token
    metrics = {"loss": 0.1 + 0.2, "tiny": 5e-324, "third": 1 / 3, "up": math.inf, "down": -math.inf}
    digits.record_epochs(
        token, [EpochRecord(0, {"loss": 9.0}), EpochRecord(1, metrics)], {0: 9.0, 1: 0.5}
    )
    digits.record_epochs(token, [EpochRecord(0, {"loss": math.nan})], {0: 8.0})
    first, second = digits.trial("digits", 0).epochs
    assert math.isnan(first.metrics["loss"])
    assert second == EpochRecord(1, metrics)
    digits.finish(token, Ending("pruned", end_step=20, value=2.0, digest="d" * 32))
    trial = digits.trial("digits", 0)
    assert (trial.state, trial.value, trial.digest) == ("pruned", 2.0, "d" * 32)
    [observation] = digits.finished_before("digits", 1)
    assert (observation.state, observation.value, observation.intermediate) == (
        "pruned",
        2.0,
        {0: 8.0, 1: 0.5},
    )


def test_a_trial_is_read_whole_with_every_attempt_and_checkpoint(digits):
    first = take(digits)
    digits.record_process(first.token, 4711, "fork", 0)
    digits.record_checkpoint(first.token, CHECKPOINT)
    digits.record_checkpoint(first.token, replace(CHECKPOINT, path="a/step-60", step=60))
    digits.finish(first.token, Ending("interrupted", end_step=60))
    second = take(digits)
    digits.record_process(second.token, 4712, "spawn", 60)
    digits.forget_checkpoint(second.token, CHECKPOINT.path)
    digits.record_checkpoint(second.token, replace(CHECKPOINT, path="b/step-90", step=90))
    digits.finish(second.token, Ending("complete", end_step=90, value=0.5, digest="f" * 32))
    record = digits.trial("digits", 0)
    assert (record.state, record.value, record.seed) == ("complete", 0.5, 1000)
    assert record.digest == "f" * 32
    assert [(a.number, a.outcome, a.pid, a.start_step, a.end_step) for a in record.attempts] == [
        (1, "interrupted", 4711, 0, 60),
        (2, "complete", 4712, 60, 90),
    ]
    for attempt in record.attempts:
        assert attempt.host == ME.host
        assert attempt.ended_at is not None
        assert attempt.started_at <= attempt.ended_at
        assert attempt.started_at.utcoffset() is not None
    assert [c.path for c in record.checkpoints] == ["a/step-60", "b/step-90"]
    assert digits.trials("digits") == (record,)


def test_a_complete_trial_needs_a_value_that_can_be_ranked(digits):
    token = take(digits).token
    with pytest.raises(NonFiniteError, match="NaN"):
        digits.finish(token, Ending("complete", value=math.nan))
    with pytest.raises(StorageError, match="needs a value"):
        digits.finish(token, Ending("complete"))
    assert digits.status("digits").running == 1
    digits.finish(token, Ending("failed", value=math.nan))
    assert digits.status("digits").failed == 1


def test_a_sampler_is_shown_the_finished_trials_below_its_window(digits):
    tokens = [take(digits).token for _ in range(3)]
    for number, token in enumerate(tokens):
        digits.record_parameter(token, "rate", FloatRange(0, 1), number / 4)
        digits.record_epochs(token, [], {0: float(number)})
    digits.finish(tokens[2], Ending("complete", value=2.0))
    digits.finish(tokens[0], Ending("failed"))
    observations = digits.finished_before("digits", 3)
    assert [o.number for o in observations] == [0, 2]
    assert [(o.state, o.value) for o in observations] == [("failed", None), ("complete", 2.0)]
    assert observations[1].params == {"rate": 0.5}
    assert observations[1].distributions == {"rate": FloatRange(0, 1)}
    assert observations[1].intermediate == {0: 2.0}
    assert [o.number for o in digits.finished_before("digits", 2)] == [0]


@pytest.mark.parametrize(("direction", "best"), [("maximize", 1), ("minimize", 0)])
def test_the_status_counts_every_trial_once_and_names_the_best(repository, direction, best):
    repository.create_or_open(replace(ROW, target=9, direction=direction))
    assert repository.status("digits").best is None
    tokens = [take(repository).token for _ in range(7)]
    for token, value in zip(tokens[:3], [0.1, 0.9, 0.9], strict=True):
        repository.finish(token, Ending("complete", value=value))
    repository.finish(tokens[3], Ending("pruned", value=99.0))
    repository.finish(tokens[4], Ending("failed"))
    repository.finish(tokens[5], Ending("interrupted"))
    status = repository.status("digits")
    counts = (status.complete, status.running, status.interrupted, status.pruned, status.failed)
    assert (counts, status.paused, status.waiting) == ((3, 1, 1, 1, 1), 0, 2)
    assert (status.best.number, status.best.value) == (best, [0.1, 0.9][best])
    values = [0.1, 0.9, 0.9, 99.0, None, None, None]
    assert [trial.value for trial in status.trials] == values
    assert repository.statuses() == (status,)
    leaders = leading(status, 2)
    assert leaders[0].number == status.best.number
    assert [leader.number for leader in leaders] == [best, best + 1]


def test_the_status_says_how_far_each_trial_is_and_what_it_last_measured(digits):
    first = take(digits)
    second = take(digits)
    for claim in (first, second):
        digits.record_parameter(claim.token, "rate", FloatRange(0, 1), 0.25)
    epochs = [EpochRecord(n, {"loss": 1.0 - n, "val_accuracy": n / 4}) for n in range(2)]
    digits.record_epochs(first.token, epochs)
    digits.finish(first.token, Ending("interrupted"))
    assert take(digits).number == first.number
    [running, started] = digits.status("digits").trials
    assert (running.state, running.epoch, running.epochs) == ("running", 2, 3)
    assert running.metrics == {"loss": 0.0, "val_accuracy": 0.25}
    assert (running.params, running.attempts) == ({"rate": 0.25}, 2)
    assert (started.epoch, started.metrics, started.attempts) == (0, {}, 1)


def test_time_left_goes_by_the_epochs_so_far_and_the_trials_that_run(repository, database):
    repository.create_or_open(replace(ROW, target=5))
    claims_ = [take(repository) for _ in range(3)]
    repository.record_epochs(claims_[1].token, [EpochRecord(n, {}) for n in range(2)])
    assert repository.status("digits").seconds_left is None, "tracing may have taken most of it"
    repository.record_epochs(claims_[0].token, [EpochRecord(n, {}) for n in range(3)])
    repository.finish(claims_[0].token, Ending("complete", value=1.0))
    began = sa.update(Attempt).values(started_at=BEGAN, ended_at=BEGAN + timedelta(seconds=30))
    database.write(lambda c: c.execute(began.where(Attempt.id == claims_[0].token)))
    # 10 s an epoch; 1 + 3 epochs of those that run and 2 x 3 of those that wait, two at a time.
    assert repository.status("digits").seconds_left == pytest.approx(50)
    for claim in claims_[1:]:
        repository.finish(claim.token, Ending("interrupted"))
    assert repository.status("digits").seconds_left is None, "nobody is at work"


def test_a_study_of_many_trials_is_read_in_as_many_queries_as_one_of_few(repository, database):
    def queries():
        with cut_off_after(database, -1) as run:
            repository.trials("digits")
            repository.status("digits")
        return len(run)

    def complete(trials):
        for _ in range(trials):
            repository.finish(take(repository).token, Ending("complete", value=1.0))
        return queries()

    repository.create_or_open(replace(ROW, target=12))
    assert complete(1) == complete(11)


TWO = replace(defined(further_objectives=[{"name": "val_loss", "direction": "minimize"}]), target=9)


def test_a_study_of_two_objectives_is_one_to_optuna_and_its_front_is_optunas(repository, database):
    repository.create_or_open(TWO)
    points = [(0.5, 1.0), (0.9, 3.0), (0.4, 2.0), (0.9, 3.0), (0.7, math.inf), (0.2, 0.5)]
    tokens = [take(repository).token for _ in range(8)]
    for token, (accuracy, loss) in zip(tokens[:6], points, strict=True):
        repository.record_parameter(token, "rate", FloatRange(0, 1), accuracy)
        repository.finish(token, Ending("complete", value=accuracy, further_values=(loss,)))
    repository.finish(tokens[6], Ending("failed"))
    with pytest.raises(NonFiniteError):
        repository.finish(tokens[7], Ending("complete", value=0.5, further_values=(math.nan,)))
    with as_optuna_sees_it(database) as study:
        assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
        assert [tuple(t.values) for t in study.trials[:6]] == points
        front = sorted(t.number for t in study.best_trials)
        study.trials[0]._validate()
    status = repository.status("digits")
    assert status.best is None
    assert [t.number for t in status.pareto] == front == [0, 1, 3, 5]
    assert status.pareto[1].params == {"rate": 0.9}
    trial = repository.trial("digits", 0)
    assert (trial.value, trial.values) == (0.5, {ROW.objective: 0.5, "val_loss": 1.0})
    assert repository.trial("digits", 6).values is None
    assert [o.values for o in repository.finished_before("digits", 7)] == [*points, None]


def test_the_directions_of_a_begun_study_cannot_be_changed(repository):
    repository.create_or_open(TWO)
    for other in (ROW, defined(further_objectives=[{"name": "val_loss", "direction": "maximize"}])):
        with pytest.raises(DefinitionError, match="created to maximize and minimize, and its def"):
            repository.accept_definition(replace(TWO, definition=other.definition))


# A study's definition is kept, and a change is named


def test_a_study_opened_again_as_it_was_is_the_stored_one(repository):
    row = repository.create_or_open(replace(ROW, source={"file": "old.py"}))
    assert row == replace(ROW, source={"file": "old.py"})
    other = replace(defined(trials=9), target=9, source={"file": "new.py"})
    assert repository.create_or_open(other) == replace(ROW, source={"file": "new.py"})
    assert repository.study("digits").target == 4
    assert repository.study_names() == ("digits",)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (defined(epochs=5), "epochs was 3 and is now 5;?"),
        (defined(epochs=True, x=1), "epochs was 3 and is now True; x was absent and is now 1"),
        (replace(ROW, direction="minimize"), "direction was 'maximize' and is now 'minimize'"),
        (replace(ROW, window=2), "window was None and is now 2"),
    ],
)
def test_a_changed_definition_is_refused_with_each_key_and_both_values(digits, changed, message):
    with pytest.raises(DefinitionChangedError, match=message):
        digits.create_or_open(changed)
    assert digits.study("digits") == ROW


def test_a_changed_search_is_refused_until_it_is_accepted_and_then_named(digits):
    changes = digits.create_or_open(ROW).changes
    changed = replace(defined(sampler={"name": "tpe"}, concurrency=2), window=3)
    with pytest.raises(
        DefinitionChangedError, match=r"sampler\.name was 'random' and is now 'tpe'"
    ):
        digits.create_or_open(changed)
    accepted = digits.accept_search(changed)
    assert accepted == (
        "sampler.name was 'random' and is now 'tpe'",
        "concurrency was absent and is now 2",
    )
    assert [change.changes for change in digits.definition_changes("digits")] == [accepted]
    assert digits.accept_search(changed) == ()
    row = digits.create_or_open(changed)
    assert (row, row.changes) == (changed, 1)
    # A worker that knows the search as it was begins no trial.
    with pytest.raises(DefinitionChangedError, match="another run has changed the search"):
        digits.claim("digits", ME, seed, changes=changes)
    take(digits, changes=row.changes)


def test_a_grid_may_grow_only_where_its_trained_points_stay(repository):
    repository.create_or_open(defined(grid={"a": [1, 2], "b": [3, 4]}))
    for _ in range(3):
        take(repository)
    assert repository.accept_search(defined(grid={"a": [1, 2, 9], "b": [3, 4]}))
    with pytest.raises(DefinitionChangedError, match=r"point 2, which has been trained"):
        repository.accept_search(defined(grid={"a": [1, 2, 9], "b": [3, 4, 5]}))


def test_repeats_cannot_change_once_a_trial_has_begun(digits):
    take(digits)
    changed = defined(repeats=2)
    with pytest.raises(DefinitionChangedError, match="repeats was absent and is now 2"):
        digits.create_or_open(changed)
    with pytest.raises(DefinitionError, match="has 1 repeats, and its definition now says 2"):
        digits.accept_definition(changed)


def test_the_total_of_a_study_with_repeats_is_a_multiple_and_its_best_a_mean(repository):
    repository.create_or_open(defined(repeats=2))
    for value in (0.5, 0.7, 0.1, 0.2):
        repository.finish(take(repository).token, Ending("complete", 30, value, "d" * 32))
    assert repository.status("digits", each=False).best.value == pytest.approx(0.6)
    with pytest.raises(DefinitionError, match="trials=5 with repeats=2"):
        repository.set_target("digits", 5)
    assert repository.set_target("digits", 6).target == 6


def test_an_attempts_fingerprint_comes_back_to_the_attempts_after_it(digits):
    first = take(digits)
    assert digits.record_fingerprint(first.token, {"keras": "3.15"}) is None
    digits.finish(first.token, Ending("interrupted"))
    second = take(digits)
    assert second.number == first.number
    exempting = {"keras": "3.16", "output_only": ["tqdm.std.tqdm"]}
    assert digits.record_fingerprint(second.token, exempting) == {"keras": "3.15"}
    assert digits.trial("digits", first.number).output_only == ("tqdm.std.tqdm",)
    assert digits.record_fingerprint(second.token, {"keras": "3.16"}) == {"keras": "3.15"}


def test_an_unknown_study_trial_or_attempt_is_answered_with_those_that_exist(repository):
    with pytest.raises(UnknownStudyError, match="run a study first"):
        repository.status("digits")
    repository.create_or_open(ROW)
    with pytest.raises(UnknownStudyError, match="did you mean 'digits'"):
        repository.study("digit")
    with pytest.raises(UnknownStudyError, match="no trial 3; none has begun"):
        repository.trial("digits", 3)
    with pytest.raises(SupersededError, match="no attempt 12345"):
        repository.finish(12345, Ending("interrupted"))


def test_a_number_out_of_range_is_refused_and_the_largest_seeds_come_back_exactly(repository):
    for wrong in ({"seed": -1}, {"seed": 2**63}, {"target": 0}):
        with pytest.raises(DefinitionError, match="expected"):
            repository.create_or_open(replace(ROW, **wrong))
        assert repository.study_names() == ()
    repository.create_or_open(replace(ROW, seed=2**63 - 1))
    claimed = repository.claim("digits", ME, lambda _number: 2**63 - 1)
    assert isinstance(claimed, Claim)
    assert claimed.seed == repository.study("digits").seed == 2**63 - 1


def test_two_studies_in_one_database_know_nothing_of_each_other(digits):
    digits.create_or_open(replace(ROW, name="mnist", target=1))
    assert [take(digits).number, take(digits, "mnist").number] == [0, 0]
    assert why_waiting(digits, "mnist")
    assert take(digits).number == 1
    assert [s.running for s in digits.statuses()] == [2, 1]
    assert digits.study_names() == ("digits", "mnist")
    assert digits.trial_numbers("digits") == (0, 1)
    assert digits.trial_numbers("none") == ()


def test_verdicts_are_added_and_the_latest_is_shown(digits):
    token = take(digits).token
    assert digits.trial("digits", 0).verification is None
    digits.record_fingerprint(token, {"threads": [1, 1]})
    assert digits.fingerprints("digits") == {0: ((1, {"threads": [1, 1]}),)}
    holds = {"mode": "replay", "verdict": "holds", "message": "equal"}
    digits.record_verdict("digits", 0, holds)
    first = digits.trial("digits", 0).verification
    location = {"epoch": 2, "step": 9, "variable": "kernel"}
    differs = {"mode": "interrupt", "verdict": "differs", "message": "no", **location}
    digits.record_verdict("digits", 0, differs)
    second = digits.trial("digits", 0).verification
    assert (first.mode, first.verdict, first.epoch) == ("replay", "holds", None)
    assert (second.epoch, second.step, second.variable) == (2, 9, "kernel")
    assert first.checked_at <= second.checked_at
    assert digits.trials("digits")[0].verification == second
    with pytest.raises(UnknownStudyError, match="no trial 7"):
        digits.record_verdict("digits", 7, holds)


def test_a_choice_that_a_parameter_does_not_have_is_an_error_that_names_it(digits):
    """Someone changed Optuna's row by hand."""
    digits.record_parameter(take(digits).token, "optimizer", Categorical(("a", "b")), "b")
    assert digits.trial("digits", 0).params == {"optimizer": "b"}
    changed = sa.text("UPDATE trial_params SET param_value = 7")
    digits.database.write(lambda c: c.execute(changed))
    with pytest.raises(
        StorageError, match=r"parameter 'optimizer' of Optuna's trial .* restore it"
    ):
        digits.trial("digits", 0)


def test_faults_are_counted_by_kind_and_a_retry_forgets_them(repository):
    repository.create_or_open(StudyRow("faulty", {}, "loss", "minimize", 9, None, 0))
    for fault in ("crash", "memory", "memory"):
        ending = Ending("crashed", error=fault, fault=fault)
        repository.finish(take(repository, "faulty").token, ending)
    third = take(repository, "faulty")
    assert [third.faults(kind) for kind in ("crash", "memory", "error", "time")] == [1, 2, 0, 0]
    repository.finish(third.token, Ending("failed", error="time", fault="time"))
    repository.retry("faulty", 0)
    resumed = take(repository, "faulty")
    assert (resumed.number, resumed.faults("crash"), resumed.faults("memory")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("error", "kind", "reported"),
    [
        ("Traceback\nObjectiveError: no 'val_acc'", "mistake", "ObjectiveError: no 'val_acc'"),
        ("CheckpointError: the disk is full", "other", "CheckpointError: the disk is full"),
        ("killed on request", None, None),
        ("ObjectiveError: only a text", None, None),
        (None, None, None),
    ],
)
def test_the_status_names_the_error_that_interrupted_a_trial_and_no_request(
    digits, error, kind, reported
):
    """What a reason is, is stored with it; its text decides nothing."""
    digits.finish(take(digits).token, Ending("interrupted", error=error, error_kind=kind))
    [trial] = digits.status("digits").trials
    assert trial.shows_a_mistake == (kind == "mistake")
    assert (trial.state, trial.error) == ("interrupted", reported)
