"""Proposals that were there already: trained once, on any number of workers, killed or not."""

import contextlib
from dataclasses import replace

import pytest
from databases import place_database, postgresql_database
from fake_workers import FakeWorker, new_study
from sweeps import results_of

from sweeper.db.database import Database
from sweeper.db.repository import Repository

STEP = 0.25
"""Five values of the only parameter, so that TPE proposes each of them several times."""

GIVEN = {"trials": 16, "epochs": 3, "sampler": "tpe", "concurrency": 2}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.whole)])
def repository(request, tmp_path):
    with contextlib.ExitStack() as stack:
        if request.param == "postgresql":
            url = stack.enter_context(postgresql_database()).url
        else:
            place_database(tmp_path / "sweeper.db")
            url = f"sqlite:///{tmp_path / 'sweeper.db'}"
        yield Repository(stack.enter_context(Database.open(url, create=False)))


def swept(repository, tmp_path, study, *, workers=1, slots=1, kills=0, **arguments):
    """Return the trials of a study after ``workers`` have run it, the first of which is killed."""
    options = new_study(repository, tmp_path, study, **{**GIVEN, **arguments})
    options = replace(options, slots=slots, step=STEP, lease_seconds=2.0)
    for _ in range(kills):
        with FakeWorker(replace(options, pace=0.05)) as victim:
            victim.wait_for("AttemptEnded")
            victim.kill()
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(FakeWorker(options)) for _ in range(workers)]
        assert [worker.end() for worker in running] == [0] * workers
    return repository.trials(study)


def trained(trials):
    """The numbers of the trials that have a training of their own."""
    return [t.number for t in trials if any(a.outcome == "complete" for a in t.attempts)]


def first_of_each(trials):
    first_numbers = {}
    for trial in trials:
        first_numbers.setdefault(trial.params["x"], trial.number)
    return sorted(first_numbers.values())


def test_a_proposal_is_trained_once_on_any_number_of_workers_and_after_kills(repository, tmp_path):
    alone = swept(repository, tmp_path, "alone")
    results = results_of(alone)
    assert len(alone) == repository.status("alone").complete == GIVEN["trials"]
    assert trained(alone) == first_of_each(alone)
    assert len(trained(alone)) <= 5 < len(alone)
    assert repository.status("alone").reused == len(alone) - len(trained(alone))
    for trial in alone:
        if trial.reuses is not None:
            original = alone[trial.reuses]
            assert trial.params == original.params
            assert (trial.value, trial.digest, trial.seed, trial.epochs) == (
                *(original.value, original.digest, original.seed, original.epochs),
            )
    together = swept(repository, tmp_path, "together", workers=2, slots=2)
    killed = swept(repository, tmp_path, "killed", workers=2, kills=5)
    for others in (together, killed):
        assert results_of(others) == results
        assert trained(others) == trained(alone)


def test_trained_duplicates_have_their_own_seeds_and_one_configuration(repository, tmp_path):
    trials = swept(repository, tmp_path, "plain", duplicates="train")
    assert trained(trials) == list(range(GIVEN["trials"]))
    assert len({trial.seed for trial in trials}) == len(trials)
    configurations = repository.results("plain").configurations
    numbers = sorted(configuration.number for configuration in configurations)
    assert numbers == first_of_each(trials)
    assert sum(len(configuration.values) for configuration in configurations) == len(trials)


def test_trained_duplicates_of_a_study_with_repeats_have_the_next_seeds(repository, tmp_path):
    arguments = {"trials": 12, "repeats": 2}
    trials = swept(repository, tmp_path, "next", slots=2, duplicates="train", **arguments)
    assert trained(trials) == list(range(12))
    configurations = repository.status("next").configurations
    repeated = [configuration for configuration in configurations if len(configuration.values) > 2]
    assert repeated
    for configuration in configurations:
        assert sorted(configuration.values) == list(range(len(configuration.values)))
        seeds = [trial.seed for trial in trials if trial.number in configuration.trials]
        assert len(set(seeds)) == len(seeds)
    alone = swept(repository, tmp_path, "next-alone", duplicates="train", **arguments)
    assert results_of(alone) == results_of(trials)


def test_repeats_of_a_duplicate_are_reused_each_from_its_own_seed(repository, tmp_path):
    trials = swept(repository, tmp_path, "repeated", slots=2, trials=12, repeats=2)
    for trial in trials:
        if trial.reuses is not None:
            assert trial.reuses % 2 == trial.number % 2
            assert trial.seed == trials[trial.reuses].seed
    configurations = repository.status("repeated").configurations
    drawn = {trial.params["x"] for trial in trials}
    assert {configuration.params["x"] for configuration in configurations} == drawn
    assert len(configurations) == len(drawn)
    assert all(len(configuration.values) == 2 for configuration in configurations)


def test_a_redrawn_proposal_is_another_one_and_the_same_on_any_number_of_workers(
    repository, tmp_path
):
    arguments = {"trials": 5, "sampler": "random", "duplicates": "redraw"}
    trials = swept(repository, tmp_path, "redrawn", **arguments)
    assert len({trial.params["x"] for trial in trials}) == 5
    reused = swept(repository, tmp_path, "reused", **{**arguments, "duplicates": "reuse"})
    assert len({trial.params["x"] for trial in reused}) < 5
    repeated = swept(repository, tmp_path, "again", slots=3, **arguments)
    assert results_of(repeated) == results_of(trials)
    more = swept(repository, tmp_path, "more", **{**arguments, "trials": 7})
    assert [trial.reuses is not None for trial in more] == [False] * 5 + [True] * 2


def test_an_enqueued_duplicate_is_reused(repository, tmp_path):
    enqueue = [{"x": 0.5}, {"x": 0.5}, {"x": 0.25}]
    trials = swept(repository, tmp_path, "given", trials=3, enqueue=enqueue, duplicates="redraw")
    assert [trial.reuses for trial in trials] == [None, 0, None]


def test_a_study_without_patience_left_ends_with_the_same_trial_on_any_number_of_workers(
    repository, tmp_path
):
    arguments = {"trials": 30, "patience": 6, "sampler": "random"}
    alone = swept(repository, tmp_path, "patient", **arguments)
    values = [trial.value for trial in alone]
    best = values.index(min(values))
    assert best + 6 < len(alone) < 30
    # Trials within the window of the one at which the patience was at its end had begun.
    assert len(alone) <= best + 6 + 2 * GIVEN["concurrency"]
    status = repository.status("patient")
    assert (status.target, status.is_over) == (len(alone), True)
    together = swept(repository, tmp_path, "patient-together", workers=2, slots=2, **arguments)
    assert results_of(together) == results_of(alone)
    assert len(swept(repository, tmp_path, "impatient", trials=30, sampler="random")) == 30
