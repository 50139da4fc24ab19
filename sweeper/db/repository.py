"""The one way to a study's rows: every method is one transaction, whole or not at all.

Used by workers and by readers, never by a trial's process. Threads may share a repository.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from sweeper.db import attempts, claims, leases, requests, stored_results, studies
from sweeper.db.annotations import Annotations
from sweeper.db.attempts import Ending, FoundCheckpoint
from sweeper.db.audits import FIRST_INTERVALS, MOST_TRIES, AuditClaim, Audits, Pinned
from sweeper.db.branches import Branches, NewBranch, set_target
from sweeper.db.claims import Claim, Lease, TrialSeed, Waiting
from sweeper.db.database import Database, answered_late
from sweeper.db.evaluations import Evaluations
from sweeper.db.leases import LostAttempt
from sweeper.db.lengths import Lengths
from sweeper.db.requests import Removing, Restarts, StopRequest
from sweeper.db.rungs import DecidedRung
from sweeper.db.studies import AcceptedChange, StudyRow, row_of
from sweeper.db.verdicts import Verdicts
from sweeper.records.code import Environment
from sweeper.records.results import (
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    StudyResults,
    StudyStatus,
    TrialRecord,
    WorkerRecord,
)
from sweeper.search.spaces import Observation
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.processes import ProcessIdentity as WorkerIdentity

__all__ = [
    "FIRST_INTERVALS",
    "MOST_TRIES",
    "AuditClaim",
    "Audits",
    "Claim",
    "DecidedRung",
    "Ending",
    "FoundCheckpoint",
    "LostAttempt",
    "NewBranch",
    "Pinned",
    "Repository",
    "StopRequest",
    "StudyRow",
    "Waiting",
    "WorkerIdentity",
]


class Repository:
    """Studies, trials and attempts in one database.

    Every method may raise `DatabaseUnavailableError`; a worker can keep what it wanted to write
    and call again. Every method that takes a token raises `SupersededError`, and writes nothing,
    once that attempt is closed or no longer its trial's current one. Every method that needs a study
    raises `UnknownStudyError` where there is none.

    Attributes:
        audits: The audits of its studies.
        verdicts: What verifications found.
        restarts: Begins studies again whose definition changed.
        evaluations: What checkpoints gave on held-out data.
        removal: Deletes studies, or gives them other names.
        annotations: What Optuna's tools show beside them.
        lengths: Has trials train on.
        branches: Adds trials that begin at a checkpoint of another.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.audits = Audits(database)
        self.verdicts = Verdicts(database)
        self.restarts = Restarts(database)
        self.evaluations = Evaluations(database)
        self.removal = Removing(database)
        self.annotations = Annotations(database)
        self.lengths = Lengths(database)
        self.branches = Branches(database)

    def with_patience(self, seconds: float) -> Repository:
        """Return the same repository for a caller that waits at most ``seconds`` for the database."""
        return Repository(self.database.with_patience(seconds))

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
        return self.database.read(lambda c: studies.changes_of(c, studies.find_study(c, study).id))

    def set_target(self, study: str, target: int) -> StudyRow:
        """Change the exact total of trials.

        Raises:
            UnknownStudyError: There is no such study.
            DefinitionError: More trials than that have already begun.
        """
        return self.database.write(lambda c: set_target(c, study, target))

    def study(self, name: str) -> StudyRow:
        """Return the stored study.

        Raises:
            UnknownStudyError: There is none; near names, or those that exist, are listed.
        """
        return self.database.read(lambda c: row_of(studies.find_study(c, name)))

    def has_begun(self, study: str) -> bool:
        """Return whether any trial of the study has begun."""
        return self.database.read(
            lambda c: studies.begun_trials(c, studies.find_study(c, study).id) > 0
        )

    def study_names(self) -> tuple[str, ...]:
        """Return the names of all studies, the oldest first."""
        return self.database.read(studies.study_names)

    def claim(
        self,
        study: str,
        worker: WorkerIdentity,
        trial_seed: TrialSeed,
        *,
        worker_key: str | None = None,
        devices: str | None = None,
        lease_seconds: float = 60.0,
        key: str | None = None,
        fingerprint: str | None = None,
    ) -> Claim | Waiting | None:
        """Claim a trial: the lowest interrupted one, else the lowest promoted one, else a new one.

        Args:
            study: The study's name.
            worker: Whose attempt it will be.
            trial_seed: Gives a new trial, by its number, its seed.
            worker_key: The key that the worker joined the study with.
            devices: What the trial will see of the machine's devices.
            lease_seconds: For which it is this worker's unless it is renewed; 60 by default.
            key: 32 characters, the same for every call that asks for this claim again because an
                answer was lost; None for a claim that is asked for once.
            fingerprint: Of the definition that the worker has; None to take the study's own.

        Returns:
            The claim; `Waiting` while running trials hold everything up, or the study is asked to
            stop; None once all are finished.

        Raises:
            UnknownStudyError: There is no such study.
            StorageError: Another tool changed Optuna's half of the study.
            DefinitionChangedError: The study has another definition by now than the worker.
        """
        asked = key or uuid.uuid4().hex
        lease = Lease(worker_key, devices, lease_seconds, fingerprint)
        return self.database.write(
            lambda c: claims.claim(c, study, worker, trial_seed, asked, lease)
        )

    def renew(
        self, tokens: Collection[int], lease_seconds: float, *, worker_key: str | None = None
    ) -> frozenset[int]:
        """Renew the leases of attempts, and their worker's own; return the tokens still held.

        A lease that has ended is renewed too, as long as nobody has closed the attempt.
        """

        def work(connection: Connection) -> frozenset[int]:
            if worker_key is not None:
                leases.renew_worker(connection, worker_key, lease_seconds)
            return leases.renew(connection, tokens, lease_seconds)

        return self.database.write(work)

    def release_lost(
        self, study: str, *, observer: str | None = None, lease_seconds: float = 60.0
    ) -> tuple[LostAttempt, ...]:
        """Close the open attempts whose worker is gone, as "lost"; call it before claiming.

        A worker's process that is gone from this host is known at once; any other worker is gone
        when its lease has ended on the database's clock. An ``observer``, the key of the worker
        that asks, judges ended leases only once it has been in contact with the database for
        ``lease_seconds`` on end: until then those who were cut off with it may still come back.
        """
        found = self.database.read(lambda c: leases.suspects(c, study, observer, lease_seconds))
        if not found:
            return ()
        return self.database.write(lambda c: leases.close_lost(c, found))

    def join(
        self,
        study: str,
        worker: WorkerIdentity,
        *,
        key: str,
        engine: str = "local",
        slots: int = 1,
        lease_seconds: float = 60.0,
    ) -> None:
        """Enter a worker into the study's list, under a ``key`` of its own (32 characters)."""
        self.database.write(
            lambda c: leases.join(
                c, study, worker, key=key, engine=engine, slots=slots, seconds=lease_seconds
            )
        )

    def leave(self, key: str, error: str | None = None) -> None:
        """Note that a worker has left, and why if something was wrong."""
        self.database.write(lambda c: leases.leave(c, key, error))

    def workers(self, study: str) -> tuple[WorkerRecord, ...]:
        """Return every worker of the study, of now and before, in the order of joining."""
        return self.database.read(lambda c: leases.read_workers(c, study))

    def request_stop(self, study: str, how: StopRequest) -> None:
        """Have workers stop, "drain" with checkpoints or "kill" at once; no claims till `clear_stop`."""
        self.database.write(lambda c: requests.request_stop(c, study, how))

    def stop_requested(self, study: str) -> StopRequest | None:
        """Return the request to stop the study's workers; None if there is none."""
        return self.database.read(lambda c: requests.stop_requested(c, study))

    def clear_stop(self, study: str) -> None:
        """Forget a request to stop, because the study is started again."""
        self.database.write(lambda c: requests.clear_stop(c, study))

    def retry(self, study: str, number: int) -> None:
        """Give a failed trial another attempt: the next claim goes on with it.

        Raises:
            UnknownStudyError: There is no such study, or no such trial has begun in it.
            UsageError: The trial has not failed.
        """
        self.database.write(
            answered_late(lambda c, again: requests.retry(c, study, number, again=again))
        )

    def retry_failed(self, study: str) -> tuple[int, ...]:
        """Give every failed trial of a study another attempt, as `retry`; return their numbers."""
        return self.database.write(lambda c: requests.retry_failed(c, study))

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
        self, token: int, epochs: Sequence[EpochRecord], values: Mapping[int, float] | None = None
    ) -> None:
        """Store finished epochs, and the objective by epoch as Optuna's intermediate values."""
        self.database.write(lambda c: attempts.record_epochs(c, token, epochs, values or {}))

    def record_checkpoint(self, token: int, checkpoint: CheckpointRecord) -> None:
        """Store a committed checkpoint."""
        self.database.write(lambda c: attempts.record_checkpoint(c, token, checkpoint))

    def forget_checkpoint(self, token: int, path: str) -> None:
        """Delete the record of a checkpoint of this trial, of whichever attempt."""
        self.database.write(lambda c: attempts.forget_checkpoint(c, token, path))

    def move_checkpoints(
        self, token: int, moved: Mapping[str, str], gone: Collection[str] = ()
    ) -> None:
        """List checkpoints of this trial where they were ``moved`` to, and those ``gone`` no more."""
        self.database.write(lambda c: attempts.move_checkpoints(c, token, moved, gone))

    def match_checkpoints(self, study: str, number: int, found: Sequence[FoundCheckpoint]) -> int:
        """Make the list of a trial's checkpoints what is on disk; return how many rows changed.

        Raises:
            StorageError: The trial is running.
        """
        return self.database.write(lambda c: attempts.match_checkpoints(c, study, number, found))

    def finish(self, token: int, ending: Ending, *, again: bool = False) -> tuple[DecidedRung, ...]:
        """Close the attempt, and with it the trial unless it will be resumed.

        Args:
            token: The attempt's.
            ending: How it ended.
            again: Whether an earlier call may have done it, whose answer was lost: then an
                attempt that is closed in the same way is no error.

        Returns:
            The rungs of its round that are decided with it, if the study has a budget.

        Raises:
            NonFiniteError: "complete" with NaN; finish it as "failed".
            StorageError: "complete" without a value.
        """
        return self.database.write(
            answered_late(lambda c, rerun: attempts.finish(c, token, ending, again=again or rerun))
        )

    def status(self, study: str, *, all_code: bool = False, each: bool = True) -> StudyStatus:
        """Count the study's trials by state, say how far each is, and find the best one.

        The best is of the present definition and code, or of all; ``each=False`` gives counts alone.
        """
        return self.database.read(
            lambda c: stored_results.read_status(c, study, all_code=all_code, each=each)
        )

    def leaders(self, study: str, count: int) -> tuple[BestTrial, ...]:
        """Return the ``count`` best trials of the present definition and code, the best first."""
        return self.database.read(lambda c: stored_results.read_leaders(c, study, count))

    def statuses(self, *, each: bool = True) -> tuple[StudyStatus, ...]:
        """Return the status of every study, the oldest first; ``each`` as for `status`."""
        return self.database.read(lambda c: stored_results.read_statuses(c, each=each))

    def trial(self, study: str, number: int) -> TrialRecord:
        """Return one trial, whole.

        Raises:
            UnknownStudyError: There is no such study, or no such trial has begun in it.
        """
        return self.database.read(lambda c: stored_results.read_trial(c, study, number))

    def trials(self, study: str) -> tuple[TrialRecord, ...]:
        """Return every trial that has begun, whole, in the order of their numbers."""
        return self.database.read(lambda c: stored_results.read_trials(c, study))

    def results(self, study: str) -> StudyResults:
        """Return the study's status and every trial that has begun.

        Raises:
            UnknownStudyError: There is no such study.
        """
        return StudyResults(self.status(study), self.trials(study))

    def environments(self, study: str) -> tuple[Environment, ...]:
        """Return the surroundings that the study's attempts ran under."""
        return self.database.read(lambda c: stored_results.read_environments(c, study))

    def unfinished(self, study: str) -> tuple[TrialRecord, ...]:
        """Return every trial that has begun and has no result yet, whole."""
        return self.database.read(lambda c: stored_results.read_unfinished(c, study))

    def failing_alike(self, study: str, least: int) -> tuple[int, str] | None:
        """Return the number of ended trials and their common error, if all failed alike.

        None if fewer than ``least`` have ended, if one succeeded or failed with another error, or if
        all trials of the study have ended. The error is its last line.
        """
        return self.database.read(lambda c: stored_results.failing_alike(c, study, least))

    def finished_before(
        self, study: str, number: int, *, whole: bool = False
    ) -> tuple[Observation, ...]:
        """Return trials below ``number`` as a sampler sees them, or ``whole`` as they ended."""
        return self.database.read(
            lambda c: stored_results.finished_before(c, study, number, whole=whole)
        )
