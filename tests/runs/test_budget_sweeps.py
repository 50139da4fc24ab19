"""A study under a budget is the same sweep on any number of workers, whoever is killed on the way."""

import random
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from databases import postgresql_database
from fake_workers import FakeWorker, new_study
from sweeps import results_of

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.budgets import Hyperband

TRIALS = 12


def decisions_of(trials):
    """Who was compared at each rung of each round, with what, and who went on."""
    return {
        (decision.first, decision.epochs): tuple(
            (candidate.number, candidate.value, candidate.promoted)
            for candidate in decision.compared
        )
        for trial in trials
        for rung in trial.rungs
        if (decision := rung.decision) is not None
    }


class Sweeps:
    """Runs the same study again and again, in one database."""

    def __init__(self, url, directory):
        self.directory = directory
        self.repository = Repository(Database.open(url, create=True))

    def options(self, study, *, trials=TRIALS, **arguments):
        arguments = {"epochs": 4, "budget": Hyperband(factor=2), "concurrency": 2, **arguments}
        worker_options = new_study(
            self.repository, self.directory, study, trials=trials, **arguments
        )
        return replace(worker_options, pace=0.003, slots=2)

    def outcome(self, study):
        trials = self.repository.trials(study)
        assert all(t.state in ("complete", "pruned") for t in trials), [t.state for t in trials]
        return results_of(trials), decisions_of(trials)

    def run(self, study, slots, workers=1, **arguments):
        options = replace(self.options(study, **arguments), slots=slots)
        with ExitStack() as stack:
            running = [stack.enter_context(FakeWorker(options)) for _ in range(workers)]
            assert [worker.end() for worker in running] == [0] * workers
        return self.outcome(study)


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.whole)]
)
def sweeps(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweeps")
    url = f"sqlite:///{directory / 'sweeper.db'}"
    with ExitStack() as stack:
        if request.param == "postgresql":
            url = stack.enter_context(postgresql_database()).url
        budget_sweeps = Sweeps(url, directory)
        stack.callback(budget_sweeps.repository.database.close)
        budget_sweeps.run("undisturbed", slots=1)
        yield budget_sweeps


@pytest.mark.whole
def test_three_slots_of_two_workers_give_the_sweep_of_one(sweeps):
    results, decisions = sweeps.run("several", slots=3, workers=2)
    assert (results, decisions) == sweeps.outcome("undisturbed")
    assert len(results) == TRIALS
    # Rounds of 4, 3 and 3 trials, and 2 of the next 4.
    sizes = [(first, epochs, len(d)) for (first, epochs), d in sorted(decisions.items())]
    assert sizes == [(0, 1, 4), (0, 2, 2), (4, 2, 3), (10, 1, 2), (10, 2, 1)]


def test_workers_that_are_killed_again_and_again_give_the_sweep_of_one(sweeps):
    options = sweeps.options("killed")
    draw = random.Random(5)
    kills = 0
    while kills < 4:
        with FakeWorker(options) as victim:
            victim.wait_for("AttemptStarted")
            time.sleep(draw.uniform(0.0, 0.1))
            if not victim.process.is_alive():
                break
            victim.kill()
            kills += 1
    with FakeWorker(options) as last:
        assert last.end() == 0
    assert sweeps.outcome("killed") == sweeps.outcome("undisturbed")
    outcomes = [a.outcome for t in sweeps.repository.trials("killed") for a in t.attempts]
    assert "lost" in outcomes
    assert kills >= 3


@pytest.mark.whole
def test_a_sampler_that_looks_draws_the_same_on_any_number_of_workers(sweeps):
    """With a window of 3, the last 2 trials are drawn from what ten others and more gave."""
    arguments = {"sampler": "tpe", "trials": 15}
    expected = sweeps.run("tpe", slots=1, **arguments)
    assert sweeps.run("tpe-2", slots=2, workers=2, **arguments) == expected


def test_a_rung_that_is_decided_before_it_is_full_is_noticed(sweeps):
    """The control: with such a decision the comparison above fails."""
    with FakeWorker(replace(sweeps.options("early"), decides_at=2)) as worker:
        worker.wait_for("RungDecided")
    early = decisions_of(sweeps.repository.trials("early"))
    expected = sweeps.outcome("undisturbed")[1]
    assert any(decided != expected.get(rung) for rung, decided in early.items())


def test_a_paused_trial_whose_newest_checkpoint_is_gone_trains_again_and_nothing_else_changes(
    sweeps,
):
    options = sweeps.options("damaged")
    with FakeWorker(options) as worker:
        worker.wait_for("AttemptEnded", '"paused"')
        worker.wait_for("AttemptEnded", '"paused"')
    paused = [t for t in sweeps.repository.trials("damaged") if t.state == "paused"]
    assert paused
    for trial in paused:
        for attempt in Path(options.runs).glob(f"damaged/trial-{trial.number:05}/attempt-*"):
            shutil.rmtree(attempt / "checkpoints", ignore_errors=True)
    with FakeWorker(options) as worker:
        assert worker.end() == 0
    assert sweeps.outcome("damaged") == sweeps.outcome("undisturbed")
