"""A halved, an extended and a repeated study, written into a database as a worker writes them."""

from sweeper.db.attempts import Ending
from sweeper.db.repository import Claim, StudyRow, WorkerIdentity
from sweeper.records.lengths import Extension
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.spec.budgets import Halving, describe_budget
from sweeper.spec.searching import Objective
from sweeper.spec.space import FloatRange

VALUES = {0: 0.4, 1: 0.1, 2: 0.3, 3: 0.2}


def claim(repository, study):
    claimed = repository.claim(study, WorkerIdentity.here(), lambda number: number)
    assert isinstance(claimed, Claim), claimed
    return claimed


def write_halved(repository):
    """Four trials, of which two go on from the first epoch and one from the second, to the fourth."""
    described = describe_budget(
        Halving(factor=2), epochs=4, pruner=None, objectives=(Objective("loss", "minimize"),)
    )
    definition = {"epochs": 4, "concurrency": 4, "budget": described}
    repository.create_or_open(StudyRow("halved", definition, "loss", "minimize", 4, None, seed=1))
    while repository.status("halved").complete < 1:
        taken = claim(repository, "halved")
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
        taken = claim(repository, "longer")
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
        taken = claim(repository, "repeated")
        rate = FloatRange(0.1, 1.0)
        repository.record_parameter(taken.token, "rate", rate, 0.2 if number < 3 else 0.4)
        value = (0.5 if number < 3 else 0.9) + (number % 3) / 1000
        repository.record_epochs(taken.token, [EpochRecord(0, {"score": value})], {0: value})
        repository.finish(taken.token, Ending("complete", 10, value, f"{number:032}"))
