"""Studies written straight into a database, as a worker writes them: nothing is trained."""

from drawn_studies import NASTY

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.declarations.budgets import Halving, describe_budget
from sweeper.declarations.searching import Objective
from sweeper.declarations.space import Categorical, FloatRange, IntRange
from sweeper.records.lengths import Extension
from sweeper.records.results import CheckpointRecord, EpochRecord

STEPS = 10
KEY = "k" * 32
"""Of the worker of a study that is not finished."""
PARAMETER = f"rate{NASTY}"
VALUES = {0: 0.4, 1: 0.1, 2: 0.3, 3: 0.2}
"""Of the trials of a halved study."""
SURROUNDINGS = {
    "versions": {"python": "3.11.0", "tensorflow": "2.21.0"},
    "processor": f"CPU {NASTY}",
    "devices": ["CPU"],
    "threads": [1, 1],
    "deterministic": True,
}


def _create(repository, name, target, objective="score", direction="maximize", **definition):
    source = {"location": "studies/digits.py", "name": "study"}
    row = StudyRow(name, definition, objective, direction, target, None, 7, source=source)
    repository.create_or_open(row)


def record_study(
    repository, name="recorded", trials=12, *, objective="score", target=None, seed=1000, text=NASTY
):
    """A study of 6 epochs: trial 1 was killed and resumed, trial 2 failed, trial 3 was pruned.

    Its errors and the names of its parameters have ``text`` in them.
    """
    target = target or trials
    _create(repository, name, target, objective, epochs=6, trials=target, sampler="random")
    for number in range(trials):
        token = _claim(repository, name, seed).token
        _train(repository, token, number, objective, text)
        if number == 1:
            token = _claim(repository, name, seed).token
            repository.record_process(token, 5, "fork", 3 * STEPS)
            _epochs(repository, token, number, range(3, 6), objective)
            repository.finish(token, Ending("complete", 60, 0.61, "e" * 32))
    verdict = {"mode": "interrupt", "verdict": "holds", "message": f"alike {text}"}
    repository.record_verdict(name, 0, verdict)


def record_unfinished_study(repository, name, target, seed=1000, text=NASTY):
    """The first four trials, one that runs in this process (4), and one that is interrupted (5)."""
    record_study(repository, name, 4, target=target, seed=seed, text=text)
    repository.join(name, WorkerIdentity.here(), key=KEY, slots=2)
    # A trial that waits to be resumed is claimed first.
    running, interrupted = (_claim(repository, name, seed).token for _ in range(2))
    for number, token in ((4, running), (5, interrupted)):
        repository.record_process(token, 4, "fork", 0)
        _epochs(repository, token, number, range(3), "score")
    repository.finish(interrupted, Ending("interrupted", end_step=10))
    return running


def _claim(repository, name, seed=0):
    claim = repository.claim(name, WorkerIdentity.here(), lambda number: seed + number)
    assert isinstance(claim, Claim), claim
    return claim


def _train(repository, token, number, objective, text):
    repository.record_process(token, 4, "fork", 0)
    repository.record_fingerprint(token, SURROUNDINGS)
    other = text or "adam"
    for name, distribution, value in (
        (f"rate{text}", FloatRange(1e-4, 0.1, log=True), 1e-4 * 1.6**number),
        ("optimizer", Categorical(("sgd", other)), other if number % 2 else "sgd"),
        ("units", IntRange(8, 64), 8 + number),
    ):
        repository.record_parameter(token, name, distribution, value)
    if number == 1:
        _epochs(repository, token, number, range(4), objective)
        checkpoint = CheckpointRecord(3 * STEPS, 3, "c" * 32, 512, "runs/step-30")
        repository.record_checkpoint(token, checkpoint)
        repository.finish(token, Ending("crashed", 35, error=f"Traceback\nKilled: {text}"))
    elif number == 2:
        repository.finish(token, Ending("failed", 0, error=f"ValueError: {text}"))
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


def _end(repository, claim, epochs, metric, value, *, outcome="complete", **ending):
    """End a trial whose new epochs all reported this value."""
    repository.record_epochs(
        claim.token,
        [EpochRecord(epoch, {metric: value}) for epoch in epochs],
        dict.fromkeys(epochs, value),
    )
    digest = f"{claim.number:032}"
    repository.finish(claim.token, Ending(outcome, 10 * (epochs[-1] + 1), value, digest, **ending))


def write_halved(repository):
    """Four trials, of which two go on from the first epoch and one from the second, to the fourth."""
    objectives = (Objective("loss", "minimize"),)
    budget = describe_budget(Halving(factor=2), epochs=4, pruner=None, objectives=objectives)
    _create(repository, "halved", 4, "loss", "minimize", epochs=4, concurrency=4, budget=budget)
    while repository.status("halved").complete < 1:
        taken = _claim(repository, "halved")
        end = taken.pause_after or 4
        repository.record_process(taken.token, 5, "fork", 0)
        ending = {"outcome": "paused", "rung": end} if taken.pause_after else {}
        _end(repository, taken, [end - 1], "loss", VALUES[taken.number], **ending)


def write_extended(repository):
    """Two trials of two epochs, of which one was extended to three."""
    _create(repository, "longer", 2, "loss", "minimize", epochs=2, concurrency=1)
    for number, epochs, value in ((0, [0, 1], 0.5), (1, [0, 1], 0.6), (0, [2], 0.25)):
        if epochs == [2]:
            repository.extend("longer", Extension(3, trials=(0,)))
        taken = _claim(repository, "longer")
        assert taken.number == number
        last = epochs[-1] + 1
        path = f"/runs/longer/trial-0000{number}/attempt-0{last}/checkpoints/step-0{last}0"
        repository.record_process(taken.token, 5, "fork", 10 * epochs[0])
        repository.record_checkpoint(
            taken.token, CheckpointRecord(10 * last, last, "ab" * 16, 9, path)
        )
        _end(repository, taken, epochs, "loss", value)


def write_repeated(repository):
    """Two configurations of three repeats each; configuration 1 is better than 0."""
    _create(repository, "repeated", 6, epochs=1, concurrency=1, repeats=3, sampler="random")
    for number in range(6):
        taken = _claim(repository, "repeated")
        rate, value = (0.2, 0.5) if number < 3 else (0.4, 0.9)
        repository.record_parameter(taken.token, "rate", FloatRange(0.1, 1.0), rate)
        _end(repository, taken, [0], "score", value + (number % 3) / 1000)


def write_mixed(repository):
    """Parameters of every kind: few and many whole numbers, a logarithm, a choice, one that some trials lack.

    Its two repeats of each configuration are so far apart that each interval exceeds all values.
    """
    _create(repository, "mixed", 8, epochs=1, concurrency=1, repeats=2, sampler="random")
    for number in range(8):
        taken = _claim(repository, "mixed")
        configuration = number // 2
        optimizer = "sgd" if configuration % 2 else "adam"
        parameters = [
            ("layers", IntRange(1, 4), 1 + configuration),
            ("units", IntRange(16, 256, log=True), 16 * 2**configuration),
            ("learning_rate", FloatRange(1e-4, 0.1, log=True), 10.0 ** (configuration - 4)),
            ("optimizer", Categorical(("sgd", "adam")), optimizer),
            *([("momentum", FloatRange(0.0, 0.9), 0.3)] if optimizer == "sgd" else []),
        ]
        for name, distribution, value in parameters:
            repository.record_parameter(taken.token, name, distribution, value)
        _end(repository, taken, [0], "score", 0.5 + configuration / 10 + number % 2 / 5)
