"""Studies written straight into a database, as a worker writes them: nothing is trained."""

from drawn_studies import NASTY

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.spec.space import Categorical, FloatRange, IntRange

STEPS = 10
KEY = "k" * 32
"""Of the worker of a study that is not finished."""
PARAMETER = f"rate-{NASTY}"
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
    repository.record_verdict(name, 0, "interrupt", "holds", {"message": f"alike {NASTY}"})


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
    claim = repository.claim(name, WorkerIdentity.here(), lambda number: seed + number)
    assert isinstance(claim, Claim)
    return claim.token


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
