"""Studies written straight into a database, as a worker writes them: nothing is trained."""

from drawn_studies import NASTY

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.records.lengths import Extension
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.spec.budgets import Halving, describe_budget
from sweeper.spec.searching import Objective
from sweeper.spec.space import Categorical, FloatRange, IntRange

STEPS = 10
KEY = "k" * 32
"""Of the worker of a study that is not finished."""
PARAMETER = f"rate-{NASTY}"
VALUES = {0: 0.4, 1: 0.1, 2: 0.3, 3: 0.2}
"""Of the trials of a halved study."""
DISTRIBUTIONS = {
    PARAMETER: FloatRange(1e-4, 0.1, log=True),
    "optimizer": Categorical(("sgd", NASTY)),
    "units": IntRange(8, 64),
}
SURROUNDINGS = {
    "versions": {"python": "3.11.0", "tensorflow": "2.21.0"},
    "processor": f"CPU {NASTY}",
    "devices": ["CPU"],
    "threads": [1, 1],
    "deterministic": True,
}


def row(name, trials, epochs, objective="score", **more):
    definition = {"epochs": epochs, "trials": trials, "sampler": "random", "pruner": None, **more}
    return StudyRow(
        name=name,
        definition=definition,
        objective=objective,
        direction="maximize",
        target=trials,
        window=None,
        seed=7,
        source={"location": "studies/digits.py", "name": "study"},
    )


def record_study(
    repository, name="recorded", trials=12, *, objective="score", target=None, seed=1000
):
    """A study of 6 epochs: trial 1 was killed and resumed, trial 2 failed, trial 3 was pruned."""
    repository.create_or_open(row(name, target or trials, 6, objective))
    for number in range(trials):
        token = _claimed(repository, name, seed)
        _train(repository, token, number, objective)
        if number == 1:
            token = _claimed(repository, name, seed)
            repository.record_process(token, 5, "fork", 3 * STEPS)
            _epochs(repository, token, number, range(3, 6), objective)
            repository.finish(token, Ending("complete", 60, 0.61, "e" * 32))
    repository.record_verdict(
        name, 0, {"mode": "interrupt", "verdict": "holds", "message": f"alike {NASTY}"}
    )


def record_unfinished_study(repository, name, target, seed):
    """The first four trials, one that runs in this process (4), and one that is interrupted (5)."""
    record_study(repository, name, 4, target=target, seed=seed)
    repository.join(name, WorkerIdentity.here(), key=KEY, slots=2)
    # A trial that waits to be resumed is claimed first.
    running, interrupted = (_claimed(repository, name, seed) for _ in range(2))
    for number, token in ((4, running), (5, interrupted)):
        repository.record_process(token, 4, "fork", 0)
        _epochs(repository, token, number, range(3), "score")
    repository.finish(interrupted, Ending("interrupted", end_step=10))


def _claimed(repository, name, seed):
    return _claim(repository, name, seed).token


def _claim(repository, name, seed=0):
    claim = repository.claim(name, WorkerIdentity.here(), lambda number: seed + number)
    assert isinstance(claim, Claim), claim
    return claim


def _train(repository, token, number, objective):
    repository.record_process(token, 4, "fork", 0)
    repository.record_fingerprint(token, SURROUNDINGS)
    values = {
        PARAMETER: 1e-4 * 1.6**number,
        "optimizer": NASTY if number % 2 else "sgd",
        "units": 8 + number,
    }
    for parameter, value in values.items():
        repository.record_parameter(token, parameter, DISTRIBUTIONS[parameter], value)
    if number == 1:
        _epochs(repository, token, number, range(4), objective)
        kept = CheckpointRecord(3 * STEPS, 3, "c" * 32, 512, "runs/step-30")
        repository.record_checkpoint(token, kept)
        repository.finish(token, Ending("crashed", 35, error=f"Traceback\nKilled: {NASTY}"))
    elif number == 2:
        repository.finish(token, Ending("failed", 0, error=f"ValueError: {NASTY}"))
    elif number == 3:
        _epochs(repository, token, number, range(2), objective)
        repository.finish(token, Ending("pruned", 20, 0.2, "f" * 32))
    else:
        _epochs(repository, token, number, range(6), objective)
        value = _value(number, 5)
        repository.finish(token, Ending("complete", 60, value, f"{number:032x}"))


def _value(number, epoch):
    return round(0.5 + number / 100 + epoch / 50, 6)


def _epochs(repository, token, number, epochs, objective):
    for epoch in epochs:
        value = _value(number, epoch)
        logs = EpochRecord(epoch, {"loss": 1 / (epoch + 1), objective: value})
        repository.record_epochs(token, [logs], {epoch: value})


def database(path):
    """A database of three studies; "other" can be compared with "recorded", and "loss" cannot."""
    url = f"sqlite:///{path}"
    with Database.open(url, create=True) as opened:
        repository = Repository(opened)
        record_study(repository)
        record_study(repository, "other", 5)
        record_study(repository, "unlike", 5, objective="gain")
    return url


def write_halved(repository):
    """Four trials, of which two go on from the first epoch and one from the second, to the fourth."""
    described = describe_budget(
        Halving(factor=2), epochs=4, pruner=None, objectives=(Objective("loss", "minimize"),)
    )
    definition = {"epochs": 4, "concurrency": 4, "budget": described}
    repository.create_or_open(StudyRow("halved", definition, "loss", "minimize", 4, None, seed=1))
    while repository.status("halved").complete < 1:
        taken = _claim(repository, "halved")
        end = taken.pause_after or 4
        value = VALUES[taken.number]
        repository.record_process(taken.token, 5, "fork", 0)
        repository.record_epochs(
            taken.token, [EpochRecord(end - 1, {"loss": value})], {end - 1: value}
        )
        ending = Ending("complete", end, value, f"{taken.number:032}")
        if taken.pause_after is not None:
            ending = Ending("paused", end, value, f"{taken.number:032}", rung=end)
        repository.finish(taken.token, ending)


def write_extended(repository):
    """Two trials of two epochs, of which one was extended to three."""
    definition = {"epochs": 2, "concurrency": 1}
    repository.create_or_open(StudyRow("longer", definition, "loss", "minimize", 2, None, seed=1))
    for number, epochs, value in ((0, 2, 0.5), (1, 2, 0.6), (0, 3, 0.25)):
        if epochs == 3:
            repository.extend("longer", Extension(3, trials=(0,)))
        taken = _claim(repository, "longer")
        assert taken.number == number
        path = f"/runs/longer/trial-0000{number}/attempt-0{epochs}/checkpoints/step-0{epochs}0"
        kept = CheckpointRecord(epochs * 10, epochs, "ab" * 16, 9, path)
        repository.record_process(taken.token, 5, "fork", 20 if epochs == 3 else 0)
        repository.record_checkpoint(taken.token, kept)
        new = range(2) if epochs == 2 else range(2, 3)
        repository.record_epochs(
            taken.token, [EpochRecord(n, {"loss": value}) for n in new], dict.fromkeys(new, value)
        )
        repository.finish(taken.token, Ending("complete", epochs * 10, value, str(epochs) * 32))


def write_repeated(repository):
    """Two configurations of three repeats each; configuration 1 is better than 0."""
    definition = {"epochs": 1, "concurrency": 1, "repeats": 3, "sampler": "random"}
    row = StudyRow("repeated", definition, "score", "maximize", 6, None, seed=1)
    repository.create_or_open(row)
    for number in range(6):
        taken = _claim(repository, "repeated")
        rate = FloatRange(0.1, 1.0)
        repository.record_parameter(taken.token, "rate", rate, 0.2 if number < 3 else 0.4)
        value = (0.5 if number < 3 else 0.9) + (number % 3) / 1000
        repository.record_epochs(taken.token, [EpochRecord(0, {"score": value})], {0: value})
        repository.finish(taken.token, Ending("complete", 10, value, f"{number:032}"))
