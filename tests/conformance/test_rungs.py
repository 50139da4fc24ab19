"""Rungs in every database: who waits, who decides, what is decided, and that it is decided once."""

import math
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from cutting import cut_off_after
from optuna_view import as_optuna_sees_it
from stored_study import ME, seed, take, why_waiting

from sweeper.db.database import Database
from sweeper.db.repository import Claim, Ending, Repository, StudyRow, Waiting
from sweeper.declarations.budgets import Halving, Hyperband, describe_budget
from sweeper.declarations.searching import Objective
from sweeper.declarations.space import FloatRange
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.results import EpochRecord

STUDY = "digits"


def create(repository, budget, *, trials, epochs=9, window=None, concurrency=4):
    described = describe_budget(
        budget, epochs=epochs, pruner=None, objectives=(Objective("loss", "minimize"),)
    )
    repository.create_or_open(
        StudyRow(
            name=STUDY,
            definition={"epochs": epochs, "concurrency": concurrency, "budget": described},
            objective="loss",
            direction="minimize",
            target=trials,
            window=window,
            seed=1,
        )
    )


@pytest.fixture
def claims(repository):
    """Give the three trials that one rung compares, after three epochs of nine."""
    create(repository, Halving(min_epochs=3), trials=3)
    return [take(repository) for _ in range(3)]


def pause(repository, claim, value):
    rung = claim.pause_after
    repository.record_epochs(
        claim.token, [EpochRecord(rung - 1, {"loss": value})], {rung - 1: value}
    )
    ending = Ending("paused", end_step=rung, value=value, digest=f"{claim.number:032}", rung=rung)
    return repository.finish(claim.token, ending)


def run_to_the_end(repository, values):
    """Run every trial there is, each of whose values is always the same; who ran from rung to rung."""
    ran = []
    while (claim := repository.claim(STUDY, ME, seed)) is not None:
        assert isinstance(claim, Claim), claim
        ran.append((claim.number, claim.pause_after or 9))
        if claim.pause_after is not None:
            pause(repository, claim, values[claim.number])
        else:
            end = Ending("complete", end_step=9, value=values[claim.number], digest="d" * 32)
            repository.finish(claim.token, end)
    return ran


def states(repository):
    return [trial.state for trial in repository.trials(STUDY)]


def test_trials_pause_and_the_best_third_goes_on_from_rung_to_rung(repository):
    create(repository, Halving(), trials=9)
    values = {n: (n * 7) % 9 / 10 for n in range(9)}
    ran = run_to_the_end(repository, values)
    best = sorted(values, key=values.__getitem__)
    assert ran[:9] == [(n, 1) for n in range(9)]
    assert ran[9:12] == [(n, 3) for n in sorted(best[:3])]
    assert ran[12:] == [(best[0], 9)]
    trials = repository.trials(STUDY)
    assert [t.state for t in trials].count("pruned") == 8
    assert trials[best[0]].state == "complete"
    assert all(trials[n].value == values[n] for n in values)
    assert all(trials[n].digest == f"{n:032}" for n in best[1:])
    first, second = trials[best[0]].rungs
    assert (first.epochs, first.promoted, second.epochs, second.promoted) == (1, True, 3, True)
    assert {c.number: c.value for c in first.decision.compared} == values
    assert [c.number for c in first.decision.compared if c.promoted] == sorted(best[:3])


def test_a_paused_trial_is_paused_and_no_worker_takes_it(repository):
    create(repository, Halving(), trials=9)
    claims = [take(repository) for _ in range(9)]
    for claim in claims[:-1]:
        assert pause(repository, claim, 0.5) == ()
    assert states(repository) == ["paused"] * 8 + ["running"]
    status = repository.status(STUDY)
    assert (status.paused, status.running, status.finished) == (8, 1, 0)
    assert why_waiting(repository) == (
        "all 9 trials have begun; 8 are paused until the other trials of their rungs arrive, "
        "and 1 is running"
    )
    (decided,) = pause(repository, claims[-1], 0.4)
    assert (decided.promoted, decided.ended) == ((0, 1, 8), (2, 3, 4, 5, 6, 7))
    assert states(repository) == ["paused", "paused", *["pruned"] * 6, "paused"]
    resumed = take(repository)
    assert (resumed.number, resumed.attempt, resumed.pause_after) == (0, 2, 3)
    assert repository.trial(STUDY, 0).state == "running"


def test_interrupted_trials_come_first_then_promoted_ones_then_new_ones(repository):
    create(repository, Halving(factor=2), trials=20, epochs=4)  # rungs 1 and 2, rounds of 4
    claims = [take(repository) for _ in range(6)]
    for claim in claims[:4]:
        pause(repository, claim, 0.1 * claim.number)
    repository.finish(claims[5].token, Ending("interrupted", end_step=0))
    assert [take(repository).number for _ in range(4)] == [5, 0, 1, 6]


def test_a_trial_that_failed_is_ranked_last_and_one_that_ended_early_by_its_value(
    repository, claims
):
    repository.finish(claims[0].token, Ending("failed", error="ValueError"))
    assert pause(repository, claims[1], 0.5) == ()
    early = Ending("complete", end_step=2, value=0.2, digest="e" * 32)
    (decided,) = repository.finish(claims[2].token, early)
    assert (decided.promoted, decided.ended) == ((2,), (0, 1))
    assert states(repository) == ["failed", "pruned", "complete"]
    assert repository.claim(STUDY, ME, seed) is None
    compared = repository.trial(STUDY, 0).rungs[0].decision.compared
    ranked = [(0, None, False), (1, 0.5, False), (2, 0.2, True)]
    assert [(c.number, c.value, c.promoted) for c in compared] == ranked


def test_a_failed_trial_that_was_ranked_is_given_no_other_attempt(repository, claims):
    repository.finish(claims[0].token, Ending("failed", error="ValueError"))
    pause(repository, claims[1], 0.5)
    repository.retry(STUDY, 0)  # its rung is not decided yet
    retried = take(repository)
    assert retried.number == 0
    repository.finish(retried.token, Ending("failed", error="ValueError"))
    pause(repository, claims[2], 0.4)
    with pytest.raises(UsageError, match="its rung after 3 epochs was decided without it"):
        repository.retry(STUDY, 0)
    assert repository.retry_failed(STUDY) == ()


def test_a_rung_of_an_interrupted_trial_waits_for_it(repository, claims):
    pause(repository, claims[0], 0.5)
    pause(repository, claims[1], 0.4)
    assert repository.finish(claims[2].token, Ending("interrupted", end_step=1)) == ()
    assert states(repository) == ["paused", "paused", "interrupted"]
    claim = take(repository)
    assert (claim.number, claim.pause_after) == (2, 3)
    (decided,) = pause(repository, claim, 0.3)
    assert decided.promoted == (2,)


def test_a_pause_whose_answer_was_lost_is_found_done_and_optuna_sees_who_was_left_behind(
    repository, database, claims
):
    for claim in claims:
        pause(repository, claim, 0.1 * claim.number)
    ending = Ending("paused", end_step=3, value=0.2, digest="x", rung=3)
    assert repository.finish(claims[2].token, ending, again=True) == ()
    assert states(repository) == ["paused", "pruned", "pruned"]
    with as_optuna_sees_it(database) as study:
        trials = study.get_trials()
    assert [t.state.name for t in trials] == ["RUNNING", "PRUNED", "PRUNED"]
    assert [t.value for t in trials] == [None, 0.1, 0.2]
    assert trials[1].intermediate_values == {2: 0.1}


def test_two_workers_that_pause_at_the_same_moment_decide_a_rung_once(repository, url):
    create(repository, Halving(factor=2), trials=16, epochs=16)  # rungs 1, 2, 4 and 8
    with Database.open(url, create=False) as other:
        repositories = [repository, Repository(other)]
        decided = []

        def work(workers_repository):
            while (claim := workers_repository.claim(STUDY, ME, seed)) is not None:
                if isinstance(claim, Waiting):
                    time.sleep(0.02)  # not faster: each asks under the lock that the others need
                elif claim.pause_after is None:
                    workers_repository.finish(
                        claim.token, Ending("complete", value=0.0, digest="d" * 32)
                    )
                else:
                    decided.extend(pause(workers_repository, claim, 0.01 * claim.number))

        threads = [threading.Thread(target=work, args=(r,)) for r in repositories * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted((d.epochs, d.promoted) for d in decided) == [
        (1, tuple(range(8))),
        (2, tuple(range(4))),
        (4, (0, 1)),
        (8, (0,)),
    ]
    assert states(repository) == ["complete"] + ["pruned"] * 15


@pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.whole)], indirect=True
)
def test_who_ends_an_attempt_has_the_study_before_the_trial(repository, url):
    """SQLite has one writer at a time. A claim that decides a rung locks in that order; in another they would wait for each other."""
    create(repository, Halving(min_epochs=3), trials=3)
    claimed = take(repository)
    engine = sa.create_engine(url)
    with engine.begin() as study:
        study.execute(sa.text("SELECT id FROM sweeper_studies FOR UPDATE"))
        waiting = threading.Thread(target=pause, args=(repository, claimed, 0.3))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive(), "the control: it waits for the study"
        study.execute(sa.text("SELECT id FROM sweeper_trials FOR UPDATE NOWAIT"))
        study.execute(sa.text("SELECT id FROM sweeper_attempts FOR UPDATE NOWAIT"))
    waiting.join()
    engine.dispose()
    assert states(repository) == ["paused"]


def test_hyperbands_last_bracket_trains_whole_and_no_round_waits_for_another(repository):
    create(repository, Hyperband(), trials=17)  # rounds of 9, 5 and 3
    claims = [take(repository) for _ in range(17)]
    assert [c.pause_after for c in claims] == [1] * 9 + [3] * 5 + [None] * 3
    for claim in claims[9:14]:
        pause(repository, claim, 0.1 * claim.number)
    assert take(repository).number == 9
    assert states(repository)[9:14] == ["running"] + ["pruned"] * 4


def test_a_raised_total_opens_new_rounds_and_a_lowered_one_completes_them(repository):
    create(repository, Halving(min_epochs=3), trials=5)  # rounds of 3, the last one cut off
    values = {n: 0.1 * n for n in range(20)}
    run_to_the_end(repository, values)
    assert states(repository) == ["complete", "pruned", "pruned", "complete", "pruned"]
    repository.set_target(STUDY, 9)
    ran = run_to_the_end(repository, values)
    assert ran == [(5, 3), (6, 3), (7, 3), (5, 9), (8, 3), (8, 9)]
    decided = repository.trial(STUDY, 7).rungs[0].decision
    assert [c.number for c in decided.compared] == [5, 6, 7]
    repository.set_target(STUDY, 12)
    pause(repository, take(repository), 0.5)
    assert states(repository)[9:] == ["paused"]
    repository.set_target(STUDY, 10)
    assert take(repository).pause_after is None


def test_a_sampler_sees_what_every_trial_gave_at_the_first_rung_whatever_came_of_it(repository):
    create(repository, Hyperband(), trials=30, window=3, concurrency=2)
    first = take(repository)
    repository.record_parameter(first.token, "x", FloatRange(0.0, 1.0), 0.25)
    assert take(repository).number == 1
    assert why_waiting(repository)  # two run
    pause(repository, first, 0.7)
    third = take(repository)
    assert third.number == 2
    (observation,) = repository.finished_before(STUDY, 1)
    assert (observation.state, observation.value, dict(observation.params)) == (
        "complete",
        0.7,
        {"x": 0.25},
    )
    assert dict(observation.intermediate) == {0: 0.7}
    repository.finish(third.token, Ending("interrupted"))
    third = take(repository)
    repository.record_epochs(third.token, [EpochRecord(0, {"loss": 0.6})], {0: 0.6})
    assert [o.value for o in repository.finished_before(STUDY, 3)] == [0.7, 0.6]
    repository.finish(third.token, Ending("failed", error="ValueError"))
    assert [o.value for o in repository.finished_before(STUDY, 3)] == [0.7, 0.6]
    # Trial 1 runs and has reported nothing: trial 4 looks back to it.
    assert take(repository).number == 3
    assert why_waiting(repository) == (
        "trial 4 uses the result of trial 1, which has not reached its first rung"
    )


def test_another_budget_is_refused_once_a_trial_has_come_to_a_rung(repository):
    create(repository, Halving(), trials=9)
    pause(repository, take(repository), 0.5)
    row = repository.study(STUDY)
    changed = replace(row, definition={**row.definition, "epochs": 12})
    with pytest.raises(DefinitionError, match="has trials at rungs of its budget"):
        repository.accept_definition(changed)


def test_a_study_whose_trials_all_failed_begins_anew_with_its_rungs_undecided(repository, claims):
    for claim in claims:
        repository.finish(claim.token, Ending("failed", error="ValueError"))
    assert repository.trial(STUDY, 0).rungs[0].promoted is False
    row = repository.study(STUDY)
    changed = replace(row, definition={**row.definition, "mended": True})
    assert repository.accept_while_nothing_has_a_value(changed, seed)[1] == 3
    assert repository.trial(STUDY, 0).rungs == ()
    assert run_to_the_end(repository, {0: 0.3, 1: 0.2, 2: 0.1}) == [(0, 3), (1, 3), (2, 3), (2, 9)]


def test_a_rung_of_forty_trials_is_decided_in_a_few_statements(repository):
    create(repository, Halving(factor=40), trials=40, epochs=40)
    *others, last = (take(repository) for _ in range(40))
    for claim in others:
        pause(repository, claim, 0.1 * claim.number)
    with cut_off_after(repository.database, -1) as statements:
        (decided,) = pause(repository, last, 9.0)
    assert (decided.promoted, len(decided.ended)) == ((0,), 39)
    assert 5 < len(statements) < 40, statements


def test_a_trial_whose_value_is_nan_at_a_rung_is_left_behind(repository):
    create(repository, Halving(), trials=3)
    ran = run_to_the_end(repository, {0: math.nan, 1: 0.5, 2: math.inf})
    assert ran == [(0, 1), (1, 1), (2, 1), (1, 3), (1, 9)]
    assert states(repository) == ["pruned", "complete", "pruned"]
    (rung,) = repository.trial(STUDY, 0).rungs
    assert (rung.value, rung.promoted) == (None, False)
    assert repository.trial(STUDY, 2).value == math.inf
