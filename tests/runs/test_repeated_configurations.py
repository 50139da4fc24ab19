"""Sweeps with repeats, and races: the same configurations, seeds and verdicts wherever they run."""

import random
from dataclasses import replace

import optuna
from databases import opened_database
from optuna_view import optuna_storage
from scripted_trials import definition, row_of, scripted_sweep

from sweeper.db.repository import Repository
from sweeper.declarations.repeating import Repeating


def _train(trial):
    """Give a value that depends on the parameter and the seed alone."""
    x = trial.suggest()
    settings = trial.assignment.settings
    position = settings.repeating.seed_position(trial.assignment.number)
    noise = random.Random(f"{settings.seed} {position}").random()
    trial.begin()
    value = (x - 0.3) ** 2 + 0.05 * ((97 * noise * (1 + 10 * x)) % 1.0)
    trial.end_epoch(0, loss=value)
    return trial.finish(value, digest=f"{value:032.20f}"[:32])


def _killed_first(trial):
    """Die in the first attempt, sometimes after the parameter was drawn."""
    if trial.assignment.attempt > 1:
        return _train(trial)
    if trial.assignment.number % 2:
        trial.suggest()
    return -9


def _sweep(directory, settings=None, workers=1, scripts=None, **arguments):
    """Run the study of this directory to its end; ``scripts`` are of trials that do not just train."""
    scripts = {None: _train, **(scripts or {})}
    with scripted_sweep(directory, scripts, settings=settings, **arguments) as sweep:
        sweep.serve(workers)
        assert sweep.error is None
        return sweep.results


def _settings(**changes):
    arguments = {"trials": 15, "repeats": 3, "sampler": "tpe", "concurrency": 3, "audit": "off"}
    retries = {"crash": 5, "memory": 0, "error": 0}
    return definition(**{**arguments, "retries": retries, **changes}).settings()


def _seen(results):
    """Return all that has to be equal in two sweeps."""
    trials = [(t.number, t.state, dict(t.params), t.value, t.seed, t.digest) for t in results]
    return [trials, [configuration.to_json() for configuration in results.configurations]]


def _everywhere(tmp_path, settings, killed):
    """Return the results of one worker, three workers, and two whose first attempts at ``killed`` die."""
    kills = dict.fromkeys(killed, _killed_first)
    for index, (workers, scripts) in enumerate([(1, {}), (3, {}), (2, kills)]):
        results = _sweep(tmp_path / str(index), settings, workers, scripts)
        assert sum(len(trial.attempts) - 1 for trial in results) == len(scripts)
        yield results


def test_a_sweep_is_the_same_on_any_number_of_workers_and_after_ten_kills(tmp_path):
    killed = (0, 1, 3, 4, 5, 7, 8, 10, 13, 14)
    one, *others = map(_seen, _everywhere(tmp_path, _settings(), killed))
    assert others == [one, one]


def test_the_repeats_of_a_configuration_have_its_parameters_and_paired_seeds(tmp_path):
    results = _sweep(tmp_path, _settings(), 2)
    seeds, params = ([getattr(t, name) for t in results] for name in ("seed", "params"))
    assert seeds == seeds[:3] * 5
    assert params == [params[3 * (n // 3)] for n in range(15)]
    assert len({values["x"] for values in params}) == 5
    with opened_database(tmp_path / "scripted.db") as database, optuna_storage(database) as storage:
        stored_trials = optuna.load_study(study_name="scripted", storage=storage).trials
    numbered = [(t.user_attrs["configuration"], t.user_attrs["repeat"]) for t in stored_trials]
    assert numbered == [(n // 3, n % 3) for n in range(15)]
    leader = results.configurations[0]
    best = results.best
    assert (best.value, best.number) == (leader.mean, leader.best_trial)
    assert best.params == leader.params


def test_the_sampler_sees_one_observation_a_configuration(tmp_path):
    """The sampler is asked with the mean of the repeats, whatever their order of completion."""
    observations = []

    def sampler(seed):
        class Watching(optuna.samplers.RandomSampler):
            def sample_independent(self, study, trial, *rest):
                complete_trials = study.get_trials(
                    deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)
                )
                observations.append([(t.number, t.value) for t in complete_trials])
                return super().sample_independent(study, trial, *rest)

        return Watching(seed=seed)

    arguments = {"trials": 12, "repeats": 3, "concurrency": 1, "audit": "off"}
    results = _sweep(tmp_path, sampler=sampler, **arguments)
    means = [(c.number, c.mean) for c in sorted(results.configurations, key=lambda c: c.number)]
    assert {len(values) for values in observations} == {0, 1, 2, 3}
    # A replay of an earlier draw sees fewer.
    assert all(values == means[: len(values)] for values in observations)


def test_a_failed_repeat_fails_its_configuration_until_it_is_retried(tmp_path):
    def fail_once(trial):
        if trial.assignment.attempt > 1:
            return _train(trial)
        return trial.fail("ValueError: no")

    results = _sweep(tmp_path, _settings(), 2, {4: fail_once})
    states = {c.number: c.state for c in results.configurations}
    assert states.pop(1) == "failed"
    assert set(states.values()) == {"complete"}
    assert results.status.failed == 1
    with opened_database(tmp_path / "scripted.db") as database:
        Repository(database).retry("scripted", 4)
    retried = _sweep(tmp_path, _settings(), 2, {4: fail_once})
    assert {c.state for c in retried.configurations} == {"complete"}


def test_a_repeat_with_other_parameters_fails_and_is_named(tmp_path):
    def ask_more(trial):
        trial.suggest("further")
        return _train(trial)

    results = _sweep(tmp_path, _settings(trials=6, failing_alike=0), scripts={2: ask_more})
    assert results[2].state == "failed"
    message = "trial 2 is repeat 2 of the same configuration as trial 0, asks for 'further'"
    assert message in (results[2].error or "")


def _prune(trial):
    trial.suggest()
    trial.begin()
    trial.end_epoch(0, loss=9.0)
    return trial.finish(9.0, outcome="pruned")


def test_a_pruned_repeat_prunes_its_configuration_and_the_rest_are_not_run(tmp_path):
    outcomes = []
    for workers in (1, 3):
        settings = _settings(trials=18, pruner=optuna.pruners.MedianPruner())
        results = _sweep(tmp_path / str(workers), settings, workers, {3: _prune, 10: _prune})
        assert results.status.finished == len(results) == 18
        assert [t.number for t in results if t.state == "pruned"] == [3, 4, 5, 10, 11]
        assert [t.number for t in results if not t.attempts] == [4, 5, 11]
        assert [t.seed for t in results.trials[3:6]] == [t.seed for t in results.trials[:3]]
        assert {c.number for c in results.configurations if c.state == "pruned"} == {1, 3}
        outcomes.append(_seen(results))
    assert outcomes[0] == outcomes[1]


def test_the_pruner_is_asked_about_configurations(tmp_path):
    """A median of the means of three repeats decides about a single repeat."""
    asked = []

    def train(trial):
        trial.suggest()
        trial.begin()
        value = float(min(trial.assignment.number, 9))
        trial.end_epoch(0, loss=value)
        asked.append(trial.judge(value))
        if asked[-1]:
            return trial.finish(value, outcome="pruned")
        trial.end_epoch(1, step=2, loss=value)
        return trial.finish(value, step=2)

    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=0)
    settings = _settings(trials=12, epochs=2, concurrency=1, sampler="random", pruner=pruner)
    results = _sweep(tmp_path, settings, scripts={None: train})
    # The first three configurations are startup; the fourth is worse than their median.
    assert asked == [False] * 9 + [True]
    assert [t.state for t in results.trials[9:]] == ["pruned"] * 3


def _confirming(at_most=8, **changes):
    repeating = Repeating(3, (4, 8, 11), at_most)
    values = ({"x": 0.31}, {"x": 0.3}, {"x": 0.9})
    settings = _settings(repeats=1, sampler="random", trials=9, **changes)
    return replace(settings, enqueue=values, confirm=repeating.to_confirm())


def test_a_race_is_the_same_on_any_number_of_workers_and_after_kills(tmp_path):
    killed = (0, 1, 3, 5, 8, 9, 10, 12, 13, 15)
    raced = list(_everywhere(tmp_path, _confirming(), killed))
    assert [_seen(results) for results in raced[1:]] == [_seen(raced[0])] * 2
    for results in raced:
        assert results.status.finished == results.status.target == len(results)
    configurations = {c.number: c for c in results.configurations}
    assert set(configurations) == {4, 8, 11}
    assert configurations[11].comparison.verdict == "better"
    # The one that is clearly worse was trained least.
    repeats = {number: len(c.values) for number, c in configurations.items()}
    assert repeats[11] < repeats[4] == repeats[8]


def test_more_repeats_later_continue_a_confirmation(tmp_path):
    first = _sweep(tmp_path, _confirming(3), 2)
    assert {len(c.values) for c in first.configurations} == {3}
    more = replace(_confirming(5), confirm=Repeating(5, (4, 8, 11), 5).to_confirm())
    with opened_database(tmp_path / "scripted.db") as database:
        repository = Repository(database)
        assert repository.study("scripted").definition["confirm"]["repeats"] == 3
        repository.accept_search(row_of(more, None))
    later = _sweep(tmp_path, more, 2)
    assert {len(c.values) for c in later.configurations} == {5}
    for trial in first:
        assert later[trial.number].digest == trial.digest
