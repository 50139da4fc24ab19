"""Sweeps with repeats, and races: the same configurations, seeds and verdicts wherever they run."""

import contextlib
import threading
from dataclasses import replace

import optuna
import pytest
from databases import opened_database
from scripted_trials import ScriptedLauncher, definition, row_of, scripted_context

from sweeper.db.repository import Repository
from sweeper.records.results import EpochRecord
from sweeper.run.protocol.messages import (
    EpochsEnded,
    Failed,
    Finished,
    Judge,
    Started,
    Suggest,
)
from sweeper.run.serving import run_slots
from sweeper.run.worker.slot import serve_slot
from sweeper.search.spec import search_spec, search_window
from sweeper.spec.repeating import Repeating
from sweeper.spec.space import FloatRange
from sweeper.train.randomness.seeds import TrialSeeds


def _noise(trial):
    assignment = trial.assignment
    settings = assignment.settings
    position = settings.repeating.seed_position(assignment.number)
    return TrialSeeds(settings.seed, position).child("noise") / 2**32


def _ask(trial, name="x", low=0.0):
    trial.say(Suggest(name, FloatRange(low, 1.0)))
    answer = trial._own.receive(20)
    if answer.error is not None:
        trial.say(Failed(answer.error))
        raise SystemExit
    return float(answer.value)


def _train(trial):
    """Give a value that depends on the parameter and the seed alone."""
    x = _ask(trial)
    trial.say(Started(0, 0, 1))
    value = (x - 0.3) ** 2 + 0.05 * ((97 * _noise(trial) * (1 + 10 * x)) % 1.0)
    trial.say(EpochsEnded((EpochRecord(0, {"loss": value}),), 1, 0.1))
    trial.say(Finished(step=1, value=value, digest=f"{value:032.20f}"[:32]))
    return 0


def _killed_first(trial):
    """Die in the first attempt, sometimes after the parameter was drawn."""
    if trial.assignment.attempt > 1:
        return _train(trial)
    if trial.assignment.number % 2:
        _ask(trial)
    return -9


def _sweep(directory, settings, scripts, workers=1):
    """Run the study of this directory to its end, and return its results."""
    with opened_database(directory / "s.db") as database:
        repository = Repository(database)
        window = search_window(settings)
        launcher = ScriptedLauncher(scripts)
        context = scripted_context(repository, directory, settings, launcher, window=window)
        run_slots(lambda: serve_slot(context), workers, context.stopping)
        if context.error is not None:
            raise context.error
        return repository.results(settings.name)


def _settings(**given):
    arguments = {"trials": 15, "repeats": 3, "sampler": "tpe", "concurrency": 3, "audit": "off"}
    retries = {"crash": 5, "memory": 0, "error": 0}
    return definition(**{**arguments, "retries": retries, **given}).settings()


def _seen(results):
    """Return all that has to be equal in two sweeps."""
    trials = [(t.number, t.state, dict(t.params), t.value, t.seed, t.digest) for t in results]
    return [trials, [each.to_json() for each in results.configurations]]


def _everywhere(tmp_path, settings, killed):
    """Return the results of one worker, three workers, and two whose first attempts at ``killed`` die."""
    kills = dict.fromkeys(killed, _killed_first)
    for index, (workers, scripts) in enumerate([(1, {}), (3, {}), (2, kills)]):
        results = _sweep(tmp_path / str(index), settings, {None: _train, **scripts}, workers)
        assert sum(len(trial.attempts) - 1 for trial in results) == len(scripts)
        yield results


def test_a_sweep_is_the_same_on_any_number_of_workers_and_after_ten_kills(tmp_path):
    killed = (0, 1, 3, 4, 5, 7, 8, 10, 13, 14)
    one, *others = map(_seen, _everywhere(tmp_path, _settings(), killed))
    assert others == [one, one]


def test_the_repeats_of_a_configuration_have_its_parameters_and_paired_seeds(tmp_path):
    results = _sweep(tmp_path, _settings(), {None: _train}, 2)
    stored = optuna.load_study(study_name="scripted", storage=f"sqlite:///{tmp_path / 's.db'}")
    attributes = [trial.user_attrs for trial in stored.trials]
    assert len({t.params["x"] for t in results}) == 5
    for first in range(0, 15, 3):
        group = results.trials[first : first + 3]
        assert len({trial.params["x"] for trial in group}) == 1
        assert [trial.seed for trial in group] == [trial.seed for trial in results.trials[:3]]
    numbered = [(each["configuration"], each["repeat"]) for each in attributes]
    assert numbered == [(n // 3, n % 3) for n in range(15)]
    leader = results.configurations[0]
    assert results.best.value == leader.mean
    assert results.best.number == leader.best_trial
    assert results.best.params == leader.params


def test_the_sampler_sees_one_observation_a_configuration(tmp_path):
    """The sampler is asked with the mean of the repeats, whatever their order of completion."""
    seen = []

    def sampler(seed):
        class Watching(optuna.samplers.RandomSampler):
            def sample_independent(self, study, trial, *rest):
                done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
                seen.append([(t.number, t.value) for t in done])
                return super().sample_independent(study, trial, *rest)

        return Watching(seed=seed)

    given = definition(trials=12, repeats=3, sampler=sampler, concurrency=1, audit="off", threads=1)
    settings = given.settings()
    with opened_database(tmp_path / "s.db") as database:
        repository = Repository(database)
        launcher, search = ScriptedLauncher({None: _train}), search_spec(settings, given, 1)
        context = scripted_context(
            repository, tmp_path, settings, launcher, search=search, window=1
        )
        serve_slot(context)
        results = repository.results("scripted")
    means = [(c.number, c.mean) for c in sorted(results.configurations, key=lambda c: c.number)]
    assert {len(each) for each in seen} == {0, 1, 2, 3}
    # A replay of an earlier draw sees fewer.
    assert all(each == means[: len(each)] for each in seen)


def test_a_failed_repeat_fails_its_configuration_until_it_is_retried(tmp_path):
    def fail_once(trial):
        if trial.assignment.attempt > 1:
            return _train(trial)
        trial.say(Failed("ValueError: no"))
        return 0

    scripts = {None: _train, 4: fail_once}
    results = _sweep(tmp_path, _settings(), scripts, 2)
    states = {c.number: c.state for c in results.configurations}
    assert states.pop(1) == "failed"
    assert set(states.values()) == {"complete"}
    assert results.status.failed == 1
    with opened_database(tmp_path / "s.db") as database:
        Repository(database).retry("scripted", 4)
    again = _sweep(tmp_path, _settings(), scripts, 2)
    assert {c.state for c in again.configurations} == {"complete"}


def test_a_repeat_with_other_parameters_fails_and_is_named(tmp_path):
    def ask_more(trial):
        _ask(trial, "further")
        return _train(trial)

    scripts = {None: _train, 2: ask_more}
    results = _sweep(tmp_path, _settings(trials=6, failing_alike=0), scripts)
    assert results[2].state == "failed"
    assert "trial 2 is repeat 2 of the same configuration as trial 0, asks for 'further'" in (
        results[2].error or ""
    )


def _pruned_where(wanted):
    def train(trial):
        if trial.assignment.number not in wanted:
            return _train(trial)
        _ask(trial)
        trial.say(Started(0, 0, 1))
        trial.say(EpochsEnded((EpochRecord(0, {"loss": 9.0}),), 1, 0.1))
        trial.say(Finished(step=1, value=9.0, digest="d" * 32, outcome="pruned"))
        return 0

    return train


def test_a_pruned_repeat_prunes_its_configuration_and_the_rest_are_not_run(tmp_path):
    seen = []
    for workers in (1, 3):
        settings = _settings(trials=18, pruner=optuna.pruners.MedianPruner())
        scripts = {None: _pruned_where({3, 10})}
        results = _sweep(tmp_path / str(workers), settings, scripts, workers)
        assert len(results) == 18
        assert results.status.finished == 18
        pruned = [t.number for t in results if t.state == "pruned"]
        assert pruned == [3, 4, 5, 10, 11]
        assert [t.number for t in results if not t.attempts] == [4, 5, 11]
        assert [t.seed for t in results.trials[3:6]] == [t.seed for t in results.trials[:3]]
        states = {c.number: c.state for c in results.configurations}
        assert {n for n, state in states.items() if state == "pruned"} == {1, 3}
        seen.append(_seen(results))
    assert seen[0] == seen[1]


def test_the_pruner_is_asked_about_configurations(tmp_path):
    """A median of the means of three repeats decides about a single repeat."""
    asked = []
    lock = threading.Lock()

    def train(trial):
        _ask(trial)
        number = trial.assignment.number
        trial.say(Started(0, 0, 2))
        value = 9.0 if number >= 9 else float(number)
        for epoch in range(2):
            trial.say(EpochsEnded((EpochRecord(epoch, {"loss": value}),), epoch + 1, 0.1))
            if epoch:
                break
            trial.say(Judge(((0, value),)))
            answer = trial._own.receive(20)
            assert answer.error is None, answer.error
            with lock:
                asked.append(answer.value)
            if answer.value:
                trial.say(Finished(step=1, value=value, digest="d" * 32, outcome="pruned"))
                return 0
        trial.say(Finished(step=2, value=value, digest="d" * 32))
        return 0

    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=0)
    settings = _settings(trials=12, epochs=2, concurrency=1, sampler="random", pruner=pruner)
    results = _sweep(tmp_path, settings, {None: train})
    # The first three configurations are startup; the fourth is worse than their median.
    assert asked == [False] * 9 + [True]
    assert [t.state for t in results.trials[9:]] == ["pruned"] * 3


def _confirming(at_most=8, **given):
    repeating = Repeating(3, (4, 8, 11), at_most)
    values = ({"x": 0.31}, {"x": 0.3}, {"x": 0.9})
    settings = _settings(repeats=1, sampler="random", trials=9, **given)
    return replace(settings, enqueue=values, confirm=repeating.to_confirm())


def test_a_race_is_the_same_on_any_number_of_workers_and_after_kills(tmp_path):
    killed = (0, 1, 3, 5, 8, 9, 10, 12, 13, 15)
    raced = list(_everywhere(tmp_path, _confirming(), killed))
    assert [_seen(results) for results in raced[1:]] == [_seen(raced[0])] * 2
    for results in raced:
        assert results.status.finished == results.status.target == len(results)
    found = {c.number: c for c in results.configurations}
    assert set(found) == {4, 8, 11}
    assert found[11].comparison.verdict == "better"
    # The one that is clearly worse was trained least.
    assert len(found[11].values) < len(found[4].values) == len(found[8].values)


@pytest.mark.whole
def test_a_race_that_was_stopped_between_rounds_continues(tmp_path):
    """A worker that dies after every claim leaves the study as another one continues it."""
    expected = _seen(_sweep(tmp_path / "whole", _confirming(), {None: _train}))
    for most in range(3, 18, 5):

        def train(trial, most=most):
            if trial.assignment.number >= most:
                trial.say(Failed("CheckpointError: the disk is full", fault="environment"))
                return 0
            return _train(trial)

        with contextlib.suppress(Exception):
            _sweep(tmp_path, _confirming(), {None: train})
    assert _seen(_sweep(tmp_path, _confirming(), {None: _train})) == expected


def test_more_repeats_later_continue_a_confirmation(tmp_path):
    first = _sweep(tmp_path, _confirming(3), {None: _train}, 2)
    assert {len(c.values) for c in first.configurations} == {3}
    more = replace(_confirming(5), confirm=Repeating(5, (4, 8, 11), 5).to_confirm())
    with opened_database(tmp_path / "s.db") as database:
        repository = Repository(database)
        assert repository.study("scripted").definition["confirm"]["repeats"] == 3
        repository.accept_search(row_of(more, None))
    later = _sweep(tmp_path, more, {None: _train}, 2)
    assert {len(c.values) for c in later.configurations} == {5}
    for trial in first:
        assert later[trial.number].digest == trial.digest
