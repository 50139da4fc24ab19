"""A study's policy: what is tried again, how often, how long, and what stops the rest."""

import threading
import time

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
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DatabaseUnavailableError, DefinitionError, TrialError
from sweeper.run.serving import study_limit


@pytest.mark.parametrize(
    ("script", "outcome", "retries", "attempts"),
    [
        (crash, "crashed", None, 4),
        (run_out_of_memory, "crashed", None, 4),
        (raise_error, "failed", None, 1),
        (crash, "crashed", {"crash": 0}, 1),
        (run_out_of_memory, "crashed", {"memory": 1}, 2),
        (raise_error, "failed", Retries(error=2), 3),
    ],
)
def test_a_fault_is_tried_again_as_often_as_its_kind_allows(
    tmp_path, script, outcome, retries, attempts
):
    with scripted_sweep(tmp_path, {None: script}, retries=retries) as sweep:
        sweep.serve()
        assert sweep.outcomes() == [outcome] * attempts
        assert sweep.states[0] == "failed"
        told = [t.partition("because it has no checkpoint ")[2] for t in sweep.notices]
        expected = [f"(retry {n} of {attempts - 1})" for n in range(1, attempts)]
        assert [text for text in told if text] == expected


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
        sweep.serve()
        assert sweep.outcomes() == [*outcomes, "complete"]
        assert sweep.states[0] == "complete"


def test_a_trial_over_its_time_is_killed_and_failed_for_good(tmp_path):
    retries = Retries(crash=3, memory=3, error=3)
    with scripted_sweep(tmp_path, {0: hang}, trials=2, time_limit=0.3, retries=retries) as sweep:
        began = time.monotonic()
        sweep.serve()
        assert 0.3 < time.monotonic() - began < 10
        assert sweep.outcomes(0) == ["failed"], "more of the same time would be spent again"
        error = sweep.trials[0].error or ""
        assert "time_limit=0.3 s" in error
        assert "sweeper retry scripted 0" in error
        assert sweep.outcomes(1) == ["complete"], "the others have their own time"


def test_what_a_checkpoint_holds_of_training_counts_and_an_earlier_attempt_does_not(tmp_path):
    def resumed_late(trial):
        trial.begin(9, trained_seconds=100.0)
        trial.killed.wait(20)
        return 0

    def resumed_early(trial):
        trial.begin(9, trained_seconds=1.0)
        time.sleep(0.3)
        return trial.finish(1.0, step=9)

    scripts = {0: resumed_late, 1: resumed_early}
    with scripted_sweep(tmp_path, scripts, trials=2, time_limit=50.0) as sweep:
        sweep.serve()
        assert sweep.states == ["failed", "complete"]


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
        sweep.serve(2)
        assert isinstance(sweep.error, TrialError)
        assert "trial 0 failed" in str(sweep.error)
        assert "sweeper retry scripted 0" in str(sweep.error)
        assert sweep.states == ["failed", "interrupted"]


def test_fail_fast_leaves_a_fault_alone_that_is_tried_again(tmp_path):
    with scripted_sweep(tmp_path, {(0, 1): crash}, trials=2, context={"fail_fast": True}) as sweep:
        sweep.serve()
        assert sweep.error is None
        assert sweep.states == ["complete", "complete"]


def fail_late(trial):
    trial.begin()
    trial.end_epoch(0, loss=1.0)
    return raise_error(trial)


ALIKE = {None: raise_error}
OTHERWISE = {None: raise_error, 1: crash, 2: run_out_of_memory}
LATE = {None: fail_late}


@pytest.mark.parametrize(
    ("scripts", "arguments", "count"),
    [
        (ALIKE, {}, 2),
        ({None: crash}, {}, 2),
        (LATE, {}, 3),
        (LATE | {0: raise_error}, {}, 3),
        (ALIKE, {"failing_alike": 1}, 1),
        (ALIKE, {"failing_alike": None}, 5),
        (ALIKE, {"failing_alike": 0}, 5),
        ({None: raise_error, 1: finish}, {}, 5),
        (OTHERWISE, {}, 5),
    ],
)
def test_only_trials_that_all_fail_with_one_error_end_the_run(tmp_path, scripts, arguments, count):
    policy = {"retries": {"crash": 0, "memory": 0}, **arguments}
    with scripted_sweep(tmp_path, scripts, trials=5, **policy) as sweep:
        sweep.serve()
        assert len(sweep.trials) == count
        if count == 5:
            assert sweep.error is None
            return
        assert isinstance(sweep.error, TrialError)
        when = " before their first step" * (fail_late not in scripts.values())
        assert f"all {count} trials so far failed{when} with the same error" in str(sweep.error)
        assert "sweeper retry scripted --failed" in str(sweep.error)


@pytest.mark.parametrize(("trains", "count"), [(False, 2), (True, 4)])
def test_no_further_trial_begins_until_the_first_ones_show_whether_every_one_fails(
    tmp_path, trains, count
):
    """Beside a trial that failed before its first step the other slot waits for the one that is starting."""
    failed = threading.Event()

    def fails(trial):
        failed.set()
        return raise_error(trial)

    def starts(trial):
        failed.wait(10)
        time.sleep(0.5)  # in which the other slot would begin the next trial
        if not trains:
            return raise_error(trial)
        trial.begin()
        trial.end_epoch(0, loss=1.0)
        return trial.finish(1.0)

    with scripted_sweep(tmp_path, {0: fails, 1: starts}, trials=4) as sweep:
        sweep.serve(2)
        assert len(sweep.launcher.launched) == count
        assert (sweep.error is None) is trains


def test_a_retried_trial_has_all_its_tries_again_and_its_window_is_not_redrawn(tmp_path):
    scripts = {0: crash}
    with scripted_sweep(tmp_path, scripts, trials=2, retries={"crash": 1}) as sweep:
        sweep.serve()
        assert sweep.outcomes(0) == ["crashed"] * 2
        sweep.repository.retry("scripted", 0)
        scripts[(0, 3)] = crash
        scripts[(0, 4)] = finish
        sweep.serve()
        assert sweep.outcomes(0) == ["crashed"] * 3 + ["complete"]
        assert sweep.outcomes(1) == ["complete"]


def hang_in_the_model_factory(trial):
    trial.suggest()
    trial.killed.wait(30)
    return 0


@pytest.mark.parametrize("hanging", [hang, hang_in_the_model_factory])
def test_the_studys_time_limit_kills_what_does_not_stop_in_the_grace_and_starts_no_other(
    tmp_path, hanging
):
    scripts = {0: hanging, 1: train_until_stopped}
    with scripted_sweep(tmp_path, scripts, trials=5) as sweep:
        with study_limit(sweep.context, 0.5, 0.5):
            began = time.monotonic()
            sweep.serve(2)
        assert 1.0 <= time.monotonic() - began < 15
        assert sweep.states == ["interrupted", "interrupted"]
        assert [sweep.attempt_error(number) for number in (0, 1)] == ["killed on request", ""]
        over, killing = sweep.notices
        assert "the study's time limit of 0.5 s is over" in over
        assert "killed after 0.5 s of grace" in over
        assert killing == "the 0.5 s of grace are over: killing the trials"
    with scripted_sweep(tmp_path, {}, trials=5) as sweep:
        sweep.serve(2)
        assert sweep.states == ["complete"] * 5


def test_control_a_run_that_ends_before_its_limit_or_within_the_grace_kills_nothing(tmp_path):
    with scripted_sweep(tmp_path, {0: train_until_stopped}, trials=5) as sweep:
        with study_limit(sweep.context, 0.3, 30.0):
            sweep.serve()
        assert sweep.states == ["interrupted"]
        assert not sweep.context.killing.is_set()
    with scripted_sweep(tmp_path, {}, trials=5) as sweep:
        with study_limit(sweep.context, 60.0, 0.0):
            sweep.serve()
        assert sweep.states == ["complete"] * 5
        assert not sweep.context.stopping.is_set()


def test_the_time_limit_ends_a_run_whose_database_is_away_and_whose_trial_hangs(
    tmp_path, monkeypatch
):
    away = threading.Event()

    def when_there(call):
        def calls(database, *arguments, **named):
            if away.is_set():
                error = DatabaseUnavailableError("no answer")
                error.passing = True
                raise error
            return call(database, *arguments, **named)

        return calls

    def hangs(trial):
        away.set()
        return hang(trial)

    for name in ("read", "write"):
        monkeypatch.setattr(Database, name, when_there(getattr(Database, name)))
    with scripted_sweep(tmp_path, {None: hangs}, trials=2) as sweep:
        with study_limit(sweep.context, 0.5, 0.5):
            began = time.monotonic()
            sweep.serve()
        assert time.monotonic() - began < 25
        assert len(sweep.launcher.launched) == 1
        assert "counts as running until" in str(sweep.error)
        away.clear()


def test_a_trial_that_is_claimed_while_the_run_is_asked_to_stop_does_not_start(
    tmp_path, monkeypatch
):
    claim = Repository.claim

    with scripted_sweep(tmp_path, {}, trials=2) as sweep:

        def claims(*arguments, **named):
            claimed = claim(*arguments, **named)
            sweep.context.request_stop("drain")
            return claimed

        monkeypatch.setattr(Repository, "claim", claims)
        sweep.serve()
        assert sweep.states == ["interrupted"]
        assert not sweep.launcher.launched
    monkeypatch.undo()
    with scripted_sweep(tmp_path, {}, trials=2) as sweep:
        sweep.serve()
        assert sweep.states == ["complete"] * 2


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


def test_all_attempts_of_a_trial_have_one_run_id_and_every_other_trial_has_another(tmp_path):
    scripts = {(0, 1): crash, (0, 2): crash}
    with scripted_sweep(tmp_path, scripts, trials=2) as sweep:
        sweep.serve()
        launched = [
            (assignment.number, assignment.run_id) for assignment in sweep.launcher.launched
        ]
        assert [number for number, _ in launched] == [0, 0, 0, 1]
        ids = [run_id for _, run_id in launched]
        assert len(set(ids[:3])) == 1
        assert ids[3] != ids[0]
        assert all(run_id.startswith("scripted-") and len(run_id) < 64 for run_id in ids)
