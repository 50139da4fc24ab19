"""Proposals that were there already: trained once, on any number of workers, killed or not."""

import contextlib
from dataclasses import replace

import pytest
from databases import place_database, postgresql_database
from fake_workers import FakeWorker, WorkerOptions, new_study
from study_files import SHORT, TWO_STEPS
from sweeps import results_of, sweep_inline

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.repeating import ConfirmRequest
from sweeper.definition.definition import StudySettings
from sweeper.run import options as run_options
from sweeper.run.launch.launchers import StudyCode
from sweeper.run.protocol.messages import StudySource
from sweeper.run.study_plan import StoredState, plan_study

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


def swept(repository, tmp_path, study, *, workers=1, slots=1, kills=0, step=STEP, **arguments):
    """Return the trials of a study after ``workers`` have run it, the first of which is killed."""
    new_study(repository, tmp_path, study, **{**GIVEN, **arguments})
    return run(repository, tmp_path, study, workers=workers, slots=slots, kills=kills, step=step)


def run(repository, tmp_path, study, *, workers=1, slots=1, kills=0, step=STEP):
    """Run a stored study to its end with fake trials, and return its trials."""
    url = str(repository.database.url_from_anywhere)
    options = WorkerOptions(url, str(tmp_path), study, slots=slots, step=step, lease_seconds=2.0)
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


def confirmed(repository, tmp_path, study, **how):
    """Return the trials of the confirmation of a study's two best configurations with three repeats."""
    row = repository.study(study)
    settings = replace(StudySettings.from_json(row.definition), trials=row.target)
    loaded = StudyCode(settings, threads_given=True, cannot_fork="")
    worker_options = run_options.WorkerOptions(1, str(repository.database.url), tmp_path)
    request = run_options.RunRequest(
        worker_options, print, confirm=ConfirmRequest(best=2, repeats=3)
    )
    stored = StoredState(confirmed=row, results=repository.results(study))
    plan = plan_study(loaded, stored, StudySource("target", "small.py"), request)
    repository.create_or_open(replace(plan.row, source=None))
    return run(repository, tmp_path, plan.row.name, **how)


@pytest.mark.parametrize(
    ("workers", "killed"),
    [(2, 1), *(pytest.param(n, 5, marks=pytest.mark.whole) for n in (1, 2))],
)
def test_a_confirmation_trains_the_runner_up_and_no_configuration_against_itself(
    repository, tmp_path, workers, killed
):
    """Two of three trials have the leader's parameters; killed, the tables are the same."""
    enqueue = [{"x": 0.5}, {"x": 0.5}, {"x": 0.25}]
    tables = []
    for name, kills in (("whole", 0), ("killed", killed)):
        searched = swept(repository, tmp_path, name, trials=3, enqueue=enqueue, sampler="random")
        assert [trial.reuses for trial in searched] == [None, 0, None]
        trials = confirmed(repository, tmp_path, name, workers=workers, kills=kills)
        assert trained(trials) == list(range(6))
        assert sorted(trial.params["x"] for trial in trials) == [0.25] * 3 + [0.5] * 3
        records = repository.status(name).confirmed
        assert [sorted(record.values) for record in records] == [[0, 1, 2]] * 2
        assert {record.number for record in records} == {0, 2}
        tables.append((results_of(trials), records))
    assert tables[0] == tables[1]


@pytest.mark.whole
def test_a_space_of_twelve_is_trained_at_most_twelve_times_in_forty_trials(repository, tmp_path):
    """TPE may leave out a point; where all are given first, twelve are trained and 28 reused."""
    arguments = {"trials": 40, "epochs": 1, "step": 0.0909}
    for name, enqueue in (
        ("searched", []),
        ("given", [{"x": 0.0909 * n} for n in range(12)]),
    ):
        trials = swept(repository, tmp_path, name, slots=2, enqueue=enqueue, **arguments)
        points = {trial.params["x"] for trial in trials}
        assert trained(trials) == first_of_each(trials)
        status = repository.status(name)
        assert (status.complete, status.reused) == (40, 40 - len(points))
        assert len(points) == 12 if enqueue else 1 < len(points) <= 12


def test_observations_count_from_the_same_trial_on_any_number_of_workers_and_after_kills(
    repository, tmp_path
):
    """They change the proposals after them, and nothing else."""
    observations = [
        ForeignObservation({"x": 0.25 * (n % 5)}, (float(n % 5 != 3),)) for n in range(20)
    ]
    tables = {}
    for name, how in (
        ("undisturbed", {}),
        ("killed", {"workers": 2, "kills": 5}),
        ("without", {}),
    ):
        swept(repository, tmp_path, name, trials=4, duplicates="train")
        if name != "without":
            assert repository.observe(name, observations, "old.csv").since == 4
        repository.set_target(name, 12)
        trials = run(repository, tmp_path, name, **how)
        assert repository.status(name).complete == len(trials) == 12
        assert repository.status(name).best.number in range(12)
        tables[name] = results_of(trials)
        params = [trial.params["x"] for trial in trials]
        if name != "without":
            assert params[4:].count(0.75) > 8 / 5, "more than by chance"
    assert tables["killed"] == tables["undisturbed"]
    first = range(4)
    assert [tables["without"][n] for n in first] == [tables["killed"][n] for n in first]
    assert tables["without"] != tables["killed"]


@pytest.mark.parametrize(("offset", "reuses"), [("0", [None, 0]), ("trial.number", [None, None])])
def test_a_trial_whose_factory_reads_its_number_is_no_duplicate(offset, reuses, tmp_path):
    """As one whose data are another fold."""
    study = replace(
        SHORT,
        data=f"x = x[{offset} :]\n{TWO_STEPS}",
        arguments="""objective="val_loss", epochs=1, trials=2, sampler="random", audit="off",
        enqueue=[{"learning_rate": 0.01}] * 2""",
    )
    trials = sweep_inline(study, tmp_path).trials
    assert [trial.reuses for trial in trials] == reuses
    assert len({trial.value for trial in trials}) == reuses.count(None)
