"""A sweep that runs nothing and a database that is a list, so that only the command is tested."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from sweeper.errors import UnknownStudyError
from sweeper.records.events import StudyOpened
from sweeper.records.results import (
    AttemptRecord,
    CheckpointRecord,
    EpochRecord,
    StudyResults,
    StudyStatus,
    TrialRecord,
    TrialStatus,
)
from sweeper.run.options import RunRequest

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Answer:
    """What a command line ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        def refuse(constant):
            pytest.fail(f"{constant} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@dataclass
class FakeSweep:
    """Stands where the execution of a sweep does."""

    results: StudyResults
    error: BaseException | None = None
    opens: str | None = "digits"
    requests: list[RunRequest] = field(default_factory=list)

    def __call__(self, request):
        self.requests.append(request)
        if self.opens is not None:
            request.listener(
                StudyOpened(StudyStatus(self.opens, 2), 1, request.options.storage, "resume!")
            )
        if self.error is not None:
            raise self.error
        return self.results


@dataclass
class FakeReader:
    """Reads from a list of trials."""

    status_record: StudyStatus
    trial_records: Sequence[TrialRecord]

    def status(self, study, *, all_code=False, each=True):
        del all_code, each
        if study != self.status_record.study:
            msg = f"no study {study!r} in the database; it has {self.status_record.study!r}"
            raise UnknownStudyError(msg)
        return self.status_record

    def statuses(self, *, each=True):
        del each
        return [self.status_record]

    def trial(self, study, number):
        self.status(study)
        return self.trial_records[number]


def trial_record(number, **changes):
    """Return a complete trial with every part filled."""
    values = {
        "study": "digits",
        "number": number,
        "state": "complete",
        "params": {"learning_rate": 0.01 * (number + 1), "optimizer": "rmsprop"},
        "value": 0.9 + number / 100,
        "seed": 7 + number,
        "digest": "d" * 32,
        "epochs": (EpochRecord(0, {"loss": 0.5, "val_accuracy": 0.9 + number / 100}),),
        "attempts": (
            AttemptRecord(
                1, "complete", 0, 45, "host-a", 4711, BEGAN, BEGAN + timedelta(seconds=9)
            ),
        ),
        "checkpoints": (CheckpointRecord(45, 1, "c" * 32, 2048, "runs/digits/step-000000045"),),
    }
    return TrialRecord(**{**values, **changes})


def status_of(trial):
    """Return what the study's status has of a trial."""
    return TrialStatus(
        number=trial.number,
        state=trial.state,
        params=trial.params,
        value=trial.value,
        epoch=len(trial.epochs),
        epochs=3,
        metrics=trial.epochs[-1].metrics if trial.epochs else {},
        attempts=len(trial.attempts),
    )


Call = Callable[..., Answer]
