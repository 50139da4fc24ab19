"""The one way to a study's rows: every method is one transaction, whole or not at all.

Used by workers and by readers, never by a trial's process. Threads may share a repository.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from sweeper.policy import Fault
from sweeper.processes import ProcessIdentity as WorkerIdentity
from sweeper.results import (
    CheckpointRecord,
    EpochRecord,
    Outcome,
    StudyStatus,
    TrialRecord,
    WorkerRecord,
)
from sweeper.search.spaces import Observation
from sweeper.space import CategoricalChoice, Distribution
from sweeper.storage import (
    attempts,
    claims,
    leases,
    matching,
    reading,
    requests,
    studies,
)
from sweeper.storage.claims import Claim, Lease, TrialSeed, Waiting
from sweeper.storage.database import Database
from sweeper.storage.leases import LostAttempt
from sweeper.storage.matching import FoundCheckpoint
from sweeper.storage.repeating import answered_late
from sweeper.storage.requests import StopRequest
from sweeper.storage.studies import AcceptedChange
from sweeper.storage.study_rows import StudyRow, row_of

__all__ = [
    "AcceptedChange",
    "Claim",
    "FoundCheckpoint",
    "LostAttempt",
    "Repository",
    "StopRequest",
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

    def with_patience(self, seconds: float) -> Repository:
        """The same, for a caller that waits no longer than so many seconds for the database."""
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
        return self.database.read(lambda c: row_of(studies.find_study(c, name)))

    def has_begun(self, study: str) -> bool:
        """Whether any trial of the study has begun."""
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
        """Claim a trial: the lowest interrupted one first, else a new one.

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

    def renew_worker(self, key: str, lease_seconds: float) -> bool:
        """Renew a worker's own lease; whether it has joined and not left."""
        return self.database.write(lambda c: leases.renew_worker(c, key, lease_seconds))

    def release_lost(
        self, study: str, *, observer: str | None = None, lease_seconds: float = 60.0
    ) -> tuple[LostAttempt, ...]:
        """Close the open attempts whose worker is gone, as "lost"; call it before claiming.

        A worker's process that is gone from this host is known at once; any other worker is gone
        when its lease has ended on the database's clock.

        Args:
            study: The study's name.
            observer: The key of the worker that asks. It judges ended leases only once it has been
                in contact with the database for ``lease_seconds`` on end: until then those who
                were cut off together with it may still come back.
            lease_seconds: A lease's length.
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
        """Return every worker that lends or lent slots to the study, in the order of joining."""
        return self.database.read(lambda c: leases.read_workers(c, study))

    def request_stop(self, study: str, how: StopRequest) -> None:
        """Ask every worker to stop: "drain" to checkpoint first, "kill" at once.

        Nothing is claimed in the study until `clear_stop`.
        """
        self.database.write(lambda c: requests.request_stop(c, study, how))

    def stop_requested(self, study: str) -> StopRequest | None:
        """Whether the study's workers were asked to stop, and how."""
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
        again: bool = False,
        further_values: tuple[float, ...] = (),
        fault: Fault | None = None,
        goes_on: bool = False,
    ) -> None:
        """Close the attempt, and with it the trial unless it will be resumed.

        Args:
            token: The attempt's.
            outcome: "complete", "pruned" and "failed" end the trial; "interrupted" never does.
            end_step: Optimizer steps finished, counted over the whole trial.
            value: The objective; needed for "complete", and infinite at worst.
            digest: Of the final training state, for "complete" and "pruned".
            error: The error with its traceback.
            final: Whether a "crashed" or "lost" attempt ends the trial, as failed.
            again: Whether an earlier call may have done it, whose answer was lost: then an
                attempt that is closed in the same way is no error.
            further_values: The objectives after the first.
            fault: Why it ended badly, which is counted; a "crashed" one counts as a crash.
            goes_on: Whether the trial goes on although the attempt is "failed".

        Raises:
            NonFiniteError: "complete" with NaN; finish it as "failed".
        """
        ending = attempts.Ending(
            outcome, end_step, value, digest, error, final, further_values, fault, goes_on
        )
        self.database.write(
            answered_late(lambda c, rerun: attempts.finish(c, token, ending, again=again or rerun))
        )

    def status(self, study: str, *, all_code: bool = False) -> StudyStatus:
        """Count the study's trials by state, and find its best one.

        That is the best of those that ran under the present definition and code, or of all.
        """
        return self.database.read(lambda c: reading.read_status(c, study, all_code=all_code))

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

    def unfinished(self, study: str) -> tuple[TrialRecord, ...]:
        """Return every trial that has begun and has no result yet, whole."""
        return self.database.read(lambda c: reading.read_unfinished(c, study))

    def failing_alike(self, study: str, least: int) -> tuple[int, str] | None:
        """Whether the trials that have ended, ``least`` or more, all failed with one error.

        Returns:
            How many, and the error's last line; None where it is not so, or all trials have ended.
        """
        return self.database.read(lambda c: reading.failing_alike(c, study, least))

    def finished_before(self, study: str, number: int) -> tuple[Observation, ...]:
        """Return the finished trials numbered below ``number``, as a sampler sees them."""
        return self.database.read(lambda c: reading.finished_before(c, study, number))
