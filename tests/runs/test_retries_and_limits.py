"""A study's policy: what is tried again, how often, how long, and what stops the rest."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from scripted_trials import (
    crash,
    definition,
    finish,
    hang,
    raise_error,
    run_out_of_memory,
    scripted_sweep,
    stop_by_itself,
    train_until_stopped,
)

from sweeper import Retries
from sweeper.db.repository import Claim, Repository
from sweeper.errors import (
    DatabaseUnavailableError,
    DefinitionError,
    Interrupted,
    TrialError,
)
from sweeper.run.launch.trial_process import ExitStatus, kill_tree
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol.messages import Finished, Started
from sweeper.run.serving import run_slots, serve_slots
from sweeper.run.worker.outcomes import Death, TrialClock, end_of
from sweeper.run.worker.slot import serve_slot

KINDS = {
    "crash": (crash, "crashed"),
    "memory": (run_out_of_memory, "crashed"),
    "error": (raise_error, "failed"),
}


@pytest.mark.parametrize(
    ("kind", "retries", "attempts"),
    [
        ("crash", None, 4),
        ("memory", None, 4),
        ("error", None, 1),
        ("crash", {"crash": 0}, 1),
        ("memory", {"memory": 1}, 2),
        ("error", Retries(error=2), 3),
    ],
)
def test_a_fault_is_tried_again_as_often_as_its_kind_allows(tmp_path, kind, retries, attempts):
    script, outcome = KINDS[kind]
    with scripted_sweep(tmp_path, {None: script}, retries=retries) as sweep:
        serve_slot(sweep.context)
        assert sweep.outcomes() == [outcome] * attempts
        assert sweep.trials[0].state == "failed"
        told = [
            t.partition("; it starts again, because it has no checkpoint ")[2]
            for t in sweep.notices
        ]
        assert [t for t in told if t] == [
            f"(retry {n} of {attempts - 1})" for n in range(1, attempts)
        ]


@pytest.mark.parametrize(
    ("scripts", "most", "outcomes"),
    [
        # Each kind has its own count; being preempted has none.
        ([crash, run_out_of_memory, raise_error], 1, ["crashed", "crashed", "failed"]),
        ([stop_by_itself] * 7, 0, ["interrupted"] * 7),
    ],
)
def test_a_trial_that_recovers_within_the_limits_is_complete(tmp_path, scripts, most, outcomes):
    numbered = {(0, n): script for n, script in enumerate([*scripts, finish], 1)}
    retries = Retries(crash=most, memory=most, error=most)
    with scripted_sweep(tmp_path, numbered, retries=retries) as sweep:
        serve_slot(sweep.context)
        assert sweep.outcomes() == [*outcomes, "complete"]
        assert sweep.trials[0].state == "complete"


def test_a_trial_over_its_time_is_killed_and_failed_for_good(tmp_path):
    retries = Retries(crash=3, memory=3, error=3)
    with scripted_sweep(tmp_path, {0: hang}, trials=2, time_limit=0.3, retries=retries) as sweep:
        began = time.monotonic()
        serve_slot(sweep.context)
        assert 0.3 < time.monotonic() - began < 10
        assert sweep.outcomes(0) == ["failed"], "more of the same time would be spent again"
        error = sweep.trials[0].error or ""
        assert "time_limit=0.3 s" in error
        assert "sweeper retry scripted 0" in error
        assert sweep.outcomes(1) == ["complete"], "the others have their own time"


def test_what_a_checkpoint_holds_of_training_counts_and_an_earlier_attempt_does_not(tmp_path):
    def resumed_late(trial):
        trial.say(Started(9, 0, 1, trained_seconds=100.0))
        trial.killed.wait(20)
        return 0

    def resumed_early(trial):
        trial.say(Started(9, 0, 1, trained_seconds=1.0))
        time.sleep(0.3)
        trial.say(Finished(step=9, value=1.0, digest="d"))
        return 0

    with scripted_sweep(
        tmp_path, {0: resumed_late, 1: resumed_early}, trials=2, time_limit=50.0
    ) as sweep:
        serve_slot(sweep.context)
        assert [t.state for t in sweep.trials] == ["failed", "complete"]


def test_time_in_which_the_worker_stood_still_does_not_count():
    moments = iter([0.0, 1.0, 2.0, 3602.0, 3603.0, 3603.0])
    clock = TrialClock(10.0, clock=lambda: next(moments))
    for _ in range(4):
        assert clock.overran(0.0) is None
    assert clock.overran(6.0) == pytest.approx(11.0)
    assert TrialClock(None).overran(1e9) is None


def test_a_kill_for_lack_of_memory_is_distinguished_from_another_by_what_the_kernel_counted():
    settings = definition(retries={"memory": 0, "crash": 1}).settings()
    claim = Claim("scripted", 0, 1, token=1, seed=0, optuna_trial_id=1)
    log = Path("log.txt")
    killed = ExitStatus(-9)
    ran_out = end_of(claim, settings, None, Death(killed, ran_out=True), log)
    other = end_of(claim, settings, None, Death(killed), log)
    assert (ran_out.fault, ran_out.final) == ("memory", True)
    assert (other.fault, other.final) == ("crash", False)
    assert "memory ran out" in (ran_out.error or "")
    assert "not for lack of memory" in (other.error or "")


def test_fail_fast_stops_the_others_at_a_checkpoint_and_says_which_trial_failed(tmp_path):
    running = threading.Event()

    def other(trial):
        running.set()
        return train_until_stopped(trial)

    def fails(trial):
        running.wait(10)
        return raise_error(trial)

    scripts = {0: fails, 1: other}
    with scripted_sweep(tmp_path, scripts, trials=5, context={"fail_fast": True}) as sweep:
        run_slots(lambda: serve_slot(sweep.context), 2, sweep.context.stopping)
        assert isinstance(sweep.context.error, TrialError)
        assert "trial 0 failed" in str(sweep.context.error)
        assert "sweeper retry scripted 0" in str(sweep.context.error)
        assert [t.state for t in sweep.trials] == ["failed", "interrupted"]


def test_fail_fast_leaves_a_fault_alone_that_is_tried_again(tmp_path):
    with scripted_sweep(tmp_path, {(0, 1): crash}, trials=2, context={"fail_fast": True}) as sweep:
        serve_slot(sweep.context)
        assert sweep.context.error is None
        assert [t.state for t in sweep.trials] == ["complete", "complete"]


@pytest.mark.parametrize("script", [raise_error, crash], ids=["raises", "dies"])
def test_trials_that_all_fail_with_one_error_end_the_run(tmp_path, script):
    with scripted_sweep(tmp_path, {None: script}, trials=9, retries={"crash": 0}) as sweep:
        serve_slot(sweep.context)
        assert isinstance(sweep.context.error, TrialError)
        message = str(sweep.context.error)
        assert "all 3 trials so far failed with the same error" in message
        assert "sweeper retry scripted --failed" in message
        assert [t.state for t in sweep.trials] == ["failed"] * 3


@pytest.mark.parametrize(
    ("scripts", "arguments"),
    [
        ({None: raise_error}, {"failing_alike": None}),
        ({None: raise_error}, {"failing_alike": 0}),
        ({None: raise_error, 1: finish}, {}),
        ({None: raise_error, 1: crash, 2: run_out_of_memory}, {}),
    ],
)
def test_trials_that_fail_otherwise_or_are_let_fail_end_nothing(tmp_path, scripts, arguments):
    policy = {"retries": {"crash": 0, "memory": 0}, **arguments}
    with scripted_sweep(tmp_path, scripts, trials=5, **policy) as sweep:
        serve_slot(sweep.context)
        assert sweep.context.error is None
        assert len(sweep.trials) == 5


def test_the_studys_time_limit_stops_it_as_a_signal_does(tmp_path):
    scripts = {None: train_until_stopped}
    with scripted_sweep(tmp_path, scripts, trials=3, study_time_limit=0.5) as sweep:
        prepared = SimpleNamespace(
            study=sweep.context.study,
            runner=sweep.launcher,
            slots=lambda wanted, _tell: wanted,
        )
        options = WorkerOptions(1, "sqlite:///x", tmp_path)
        with pytest.raises(Interrupted, match="0 of 3 trials finished and 1 to be resumed"):
            serve_slots(prepared, options, sweep.events.append)
        assert any("time limit of 0.5 s is over" in t for t in sweep.notices)


def test_a_retried_trial_has_all_its_tries_again_and_its_window_is_not_redrawn(tmp_path):
    scripts = {0: crash}
    with scripted_sweep(tmp_path, scripts, trials=2, retries={"crash": 1}) as sweep:
        serve_slot(sweep.context)
        assert sweep.outcomes(0) == ["crashed"] * 2
        sweep.repository.retry("scripted", 0)
        scripts[(0, 3)], scripts[(0, 4)] = crash, finish
        serve_slot(sweep.context)
        assert sweep.outcomes(0) == ["crashed"] * 3 + ["complete"]
        assert sweep.outcomes(1) == ["complete"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"retries": {"crashes": 1}}, "retries names 'crashes'"),
        ({"retries": {"crash": -1}}, "a whole number, at least 0"),
        ({"retries": {"crash": True}}, "a whole number, at least 0"),
        ({"retries": 3}, "retries=3; give a mapping"),
        ({"time_limit": 0}, "time_limit=0; give a number of seconds above 0"),
        ({"time_limit": float("inf")}, "time_limit=inf"),
        ({"study_time_limit": "1h"}, "study_time_limit='1h'"),
    ],
)
def test_an_impossible_policy_is_refused_when_it_is_written_down(arguments, says):
    with pytest.raises(DefinitionError) as caught:
        definition(**arguments)
    assert says in str(caught.value)


def test_what_runs_under_another_user_keeps_nothing_else_alive():
    """A program with another user's rights is not ours to stop; the trial around it is."""
    killed = []

    class Member:
        def __init__(self, pid):
            self.pid = pid

        def children(self, recursive):
            return [Member(2), Member(3)] * recursive

        def suspend(self):
            if self.pid == 2:
                raise psutil.AccessDenied(self.pid)

        def kill(self):
            self.suspend()
            killed.append(self.pid)

    kill_tree(Member(1))
    assert killed == [1, 3]


# A database that goes away between a claim and the trial's start


@pytest.mark.parametrize("passing", [True, False], ids=["away for a while", "gone for good"])
def test_a_database_that_goes_while_an_attempt_is_prepared_leaves_none_open(
    tmp_path, monkeypatch, *, passing
):
    away = DatabaseUnavailableError("the server closed the connection")
    away.passing = passing
    answers = [away, away]
    trial = Repository.trial

    def trial_once_it_is_back(repository, study, number):
        if answers:
            raise answers.pop()
        return trial(repository, study, number)

    scripts = {(0, 1): crash, (0, 2): finish}
    with scripted_sweep(tmp_path, scripts) as sweep:
        monkeypatch.setattr(Repository, "trial", trial_once_it_is_back)
        serve_slot(sweep.context)
        answers.clear()
        if passing:
            assert sweep.context.error is None
            assert sweep.outcomes() == ["crashed", "complete"]
            assert any("the database is reachable again" in t for t in sweep.notices)
        else:
            assert sweep.context.error is away
            assert sweep.outcomes() == ["crashed", "interrupted"]


def test_a_claim_whose_answer_is_lost_costs_no_attempt(tmp_path, monkeypatch):
    lost = DatabaseUnavailableError("the server closed the connection")
    lost.passing = True
    answers = [lost]
    claim = Repository.claim

    def claim_and_lose_the_answer(repository, *given, **options):
        claimed = claim(repository, *given, **options)
        if answers:
            raise answers.pop()
        return claimed

    with scripted_sweep(tmp_path, {None: finish}, trials=2) as sweep:
        monkeypatch.setattr(Repository, "claim", claim_and_lose_the_answer)
        serve_slot(sweep.context)
        assert not answers
        assert [sweep.outcomes(n) for n in range(2)] == [["complete"], ["complete"]]
