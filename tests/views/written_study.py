"""A study of which every part is written straight into a database: no training, no processes.

Of its five trials 0 is complete and was resumed, 1 is complete and the best, 2 failed, 3 is interrupted,
and 4 runs in this process.
"""

from sweeper.db.attempts import Ending
from sweeper.db.repository import Claim, StudyRow
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.spec.space import Categorical, FloatRange
from sweeper.support.processes import ProcessIdentity

STUDY = "digits"
SEED = 2**62 + 1
"""Of every trial plus its number: no number of a browser's."""

ME = ProcessIdentity.here()
ERROR = "Traceback:\n  a line\nValueError: <script>alert('ouch')</script> & more"
KIND = "<b>bold</b> & `code`"


def write_study(repository, name=STUDY, trials=6):
    """Write the study with the first five of its trials."""
    definition = {"epochs": 4, "sampler": "random", "concurrency": 4, "trials": trials}
    row = StudyRow(name, definition, "val_accuracy", "maximize", trials, None, 7)
    repository.create_or_open(row)
    repository.join(name, ME, key="k" * 32, slots=2)

    resumed = _begun(repository, name)
    _trained(repository, resumed, 0, 2)
    repository.finish(resumed.token, Ending("interrupted", end_step=20))
    resumed = _begun(repository, name)
    repository.record_process(resumed.token, 4712, "fork", 20)
    _trained(repository, resumed, 2, 4)
    repository.finish(resumed.token, Ending("complete", 40, 0.9, "a" * 32))

    best = _begun(repository, name)
    _trained(repository, best, 0, 4)
    repository.finish(best.token, Ending("complete", 40, 0.95, "b" * 32))

    failed = _begun(repository, name)
    _trained(repository, failed, 0, 1)
    repository.finish(failed.token, Ending("failed", 15, error=ERROR))

    # Trials that wait to be resumed are claimed first, so the running one begins before one waits.
    interrupted, running = _begun(repository, name), _begun(repository, name)
    _trained(repository, running, 0, 3)
    _trained(repository, interrupted, 0, 1)
    repository.finish(interrupted.token, Ending("interrupted", end_step=10))


def _begun(repository, name):
    claim = repository.claim(name, ME, lambda number: SEED + number, worker_key="k" * 32)
    assert isinstance(claim, Claim)
    repository.record_process(claim.token, 4711, "fork", 0)
    rate, kind = FloatRange(0.001, 1.0), Categorical((KIND, "plain"))
    repository.record_parameter(claim.token, "rate", rate, 0.1 * (claim.number + 1))
    repository.record_parameter(claim.token, "kind", kind, KIND if claim.number else "plain")
    return claim


def _trained(repository, claim, first, end):
    for epoch in range(first, end):
        value = 0.5 + epoch / 10 + claim.number / 100
        metrics = {"loss": 1 - value, "accuracy": value, "val_loss": 1 - value}
        record = EpochRecord(epoch, {**metrics, "val_accuracy": value})
        repository.record_epochs(claim.token, [record], {epoch: value})
        path = (
            f"/runs/{claim.study}/trial-{claim.number:05d}/attempt-{claim.attempt:02d}"
            f"/checkpoints/step-{10 * epoch + 10:09d}"
        )
        kept = CheckpointRecord(10 * epoch + 10, epoch + 1, "c" * 32, 2048, path)
        repository.record_checkpoint(claim.token, kept)
