"""The one way to a study's rows: every method is one transaction, whole or not at all.

Used by workers and by readers, never by a trial's process. Threads may share a repository.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from sweeper.results import (
    CheckpointRecord,
    EpochRecord,
    Outcome,
    StudyStatus,
    TrialRecord,
)
from sweeper.search.spaces import Observation
from sweeper.space import CategoricalChoice, Distribution
from sweeper.storage import attempts, claims, matching, reading, studies
from sweeper.storage.claims import Claim, LostAttempt, TrialSeed, Waiting
from sweeper.storage.database import Database
from sweeper.storage.matching import FoundCheckpoint
from sweeper.storage.studies import AcceptedChange, StudyRow
from sweeper.storage.workers import WorkerIdentity

__all__ = [
    "AcceptedChange",
    "Claim",
    "FoundCheckpoint",
    "LostAttempt",
    "Repository",
    "StudyRow",
    "TrialSeed",
    "Waiting",
    "WorkerIdentity",
]


class Repository:
    """Studies, trials and attempts in one database.

    Every method may raise `DatabaseUnavailableError`; a worker can keep what it wanted to write
    and call again. Every method that takes a token raises `SupersededError`, and writes nothing,
    once that attempt is closed or no longer its trial's current one.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def create_or_open(self, row: StudyRow) -> StudyRow:
        """Create the study, Optuna's half and ours together, or open it; return what is stored.

        The stored total may differ from ``row.target``; `set_target` changes it.

        Raises:
            DefinitionChangedError: It is stored with another definition; each differing key is
                named with both values.
            DefinitionError: Optuna has a study of this name that sweeper did not make.
        """
        try:
            return self.database.write(lambda c: studies.create_or_open(c, row))
        except IntegrityError:
            # Another process created it between our look and our insert; now it is there.
            return self.database.write(lambda c: studies.create_or_open(c, row))

    def accept_definition(self, row: StudyRow) -> tuple[str, ...]:
        """Put ``row``'s definition in the stored one's place; return what changed, recorded too.

        Raises:
            UnknownStudyError: There is no such study.
            DefinitionError: The direction changed, by which finished trials are ranked.
        """
        return self.database.write(lambda c: studies.accept_definition(c, row))

    def definition_changes(self, study: str) -> tuple[AcceptedChange, ...]:
        """Return the changes of a study's definition that were accepted, the oldest first."""
        return self.database.read(lambda c: studies.definition_changes(c, study))

    def set_target(self, study: str, target: int) -> StudyRow:
        """Change the exact total of trials.

        Raises:
            UnknownStudyError: There is no such study.
            DefinitionError: More trials than that have already begun.
        """
        return self.database.write(lambda c: studies.set_target(c, study, target))

    def study(self, name: str) -> StudyRow:
        """Return the stored study.

        Raises:
            UnknownStudyError: There is none; near names, or those that exist, are listed.
        """
        return self.database.read(lambda c: studies.row_of(studies.find_study(c, name)))

    def study_names(self) -> tuple[str, ...]:
        """Return the names of all studies, the oldest first."""
        return self.database.read(studies.study_names)

    def claim(
        self, study: str, worker: WorkerIdentity, trial_seed: TrialSeed
    ) -> Claim | Waiting | None:
        """Claim a trial: the lowest interrupted one first, else a new one.

        Args:
            study: The study's name.
            worker: Whose attempt it will be.
            trial_seed: Gives a new trial, by its number, its seed.

        Returns:
            The claim; `Waiting` while running trials hold everything up; None once all are
            finished.

        Raises:
            UnknownStudyError: There is no such study.
            StorageError: Another tool changed Optuna's half of the study.
        """
        key = uuid.uuid4().hex
        return self.database.write(lambda c: claims.claim(c, study, worker, trial_seed, key))

    def release_lost(self, study: str) -> tuple[LostAttempt, ...]:
        """Close the open attempts whose worker is gone from this host; call it before claiming."""
        return self.database.write(lambda c: claims.release_lost(c, study))

    def record_process(self, token: int, pid: int, isolation: str, start_step: int | None) -> None:
        """Store the trial's process, how it is isolated, and the step from which it goes on."""
        self.database.write(lambda c: attempts.record_process(c, token, pid, isolation, start_step))

    def record_fingerprint(
        self, token: int, fingerprint: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Store what the attempt runs under, as JSON; return the newest earlier attempt's."""
        return self.database.write(lambda c: attempts.record_fingerprint(c, token, fingerprint))

    def record_parameter(
        self, token: int, name: str, distribution: Distribution, value: CategoricalChoice
    ) -> CategoricalChoice:
        """Store a parameter unless an earlier attempt did; return the value that holds.

        Raises:
            ParameterError: It is stored with another distribution, both of which are named; or
                the distribution does not contain ``value``.
        """
        return self.database.write(
            lambda c: attempts.record_parameter(c, token, name, distribution, value)
        )

    def record_epochs(
        self,
        token: int,
        epochs: Sequence[EpochRecord],
        values: Mapping[int, float] | None = None,
    ) -> None:
        """Store finished epochs, and the objective by epoch as Optuna's intermediate values."""
        self.database.write(lambda c: attempts.record_epochs(c, token, epochs, values or {}))

    def record_checkpoint(self, token: int, checkpoint: CheckpointRecord) -> None:
        """Store a committed checkpoint."""
        self.database.write(lambda c: attempts.record_checkpoint(c, token, checkpoint))

    def forget_checkpoint(self, token: int, path: str) -> None:
        """Delete the record of a checkpoint of this trial, of whichever attempt."""
        self.database.write(lambda c: attempts.forget_checkpoint(c, token, path))

    def match_checkpoints(self, study: str, number: int, found: Sequence[FoundCheckpoint]) -> int:
        """Make the list of a trial's checkpoints what is on disk; return how many rows changed.

        Raises:
            StorageError: The trial is running.
        """
        return self.database.write(lambda c: matching.match_checkpoints(c, study, number, found))

    def finish(
        self,
        token: int,
        outcome: Outcome,
        *,
        end_step: int | None = None,
        value: float | None = None,
        digest: str | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> None:
        """Close the attempt, and with it the trial unless it will be resumed.

        Args:
            token: The attempt's.
            outcome: "complete", "pruned" and "failed" end the trial; "interrupted" never does.
            end_step: Optimizer steps finished, counted over the whole trial.
            value: The objective; needed for "complete", and infinite at worst.
            digest: Of the final training state, for "complete".
            error: The error with its traceback.
            final: Whether a "crashed" or "lost" attempt ends the trial, as failed.

        Raises:
            NonFiniteError: "complete" with NaN; finish it as "failed".
        """
        ending = attempts.Ending(outcome, end_step, value, digest, error, final)
        runs = 0

        def close(connection: Connection) -> None:
            nonlocal runs
            runs += 1
            attempts.finish(connection, token, ending, again=runs > 1)

        self.database.write(close)

    def status(self, study: str) -> StudyStatus:
        """Count the study's trials by state, and find its best one."""
        return self.database.read(lambda c: reading.read_status(c, study))

    def statuses(self) -> tuple[StudyStatus, ...]:
        """Return the status of every study, the oldest first."""
        return self.database.read(reading.read_statuses)

    def trial(self, study: str, number: int) -> TrialRecord:
        """Return one trial, whole.

        Raises:
            UnknownStudyError: There is no such study, or no such trial has begun in it.
        """
        return self.database.read(lambda c: reading.read_trial(c, study, number))

    def trials(self, study: str) -> tuple[TrialRecord, ...]:
        """Return every trial that has begun, whole, in the order of their numbers."""
        return self.database.read(lambda c: reading.read_trials(c, study))

    def finished_before(self, study: str, number: int) -> tuple[Observation, ...]:
        """Return the finished trials numbered below ``number``, as a sampler sees them."""
        return self.database.read(lambda c: reading.finished_before(c, study, number))
