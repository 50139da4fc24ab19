"""Repository of studies, the only access to their rows; every method is one transaction.

It is used by workers and readers, not by a trial's process, and is safe for several threads.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from sweeper.db import (
    attempts,
    claims,
    leases,
    lengths,
    requests,
    stored_results,
    studies,
    verdicts,
)
from sweeper.db.attempts import Ending
from sweeper.db.claims import Claim, TrialSeed, Waiting
from sweeper.db.database import Database
from sweeper.db.duplicates import Proposal
from sweeper.db.leases import LostAttempt
from sweeper.db.repeats import other_parameters
from sweeper.db.requests import StopRequest
from sweeper.db.rungs import DecidedRung
from sweeper.db.studies import StudyRow
from sweeper.support.processes import ProcessIdentity as WorkerIdentity

__all__ = [
    "Claim",
    "DecidedRung",
    "Ending",
    "LostAttempt",
    "Proposal",
    "Repository",
    "StopRequest",
    "StudyRow",
    "Waiting",
    "WorkerIdentity",
]


P = ParamSpec("P")
T = TypeVar("T")


def reading(statement: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of `Repository` that runs ``statement`` in one read-only transaction."""

    @functools.wraps(statement)
    def method(self: Repository, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.read(lambda connection: statement(connection, *args, **kwargs))

    return method


def writing(statement: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of `Repository` that runs ``statement`` in one writing transaction."""

    @functools.wraps(statement)
    def method(self: Repository, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.write(lambda connection: statement(connection, *args, **kwargs))

    return method


def writing_once(statement: Callable[..., T]) -> Callable[..., T]:
    """Return a writing method that passes ``again`` to ``statement``: whether it has run before.

    In that case its commit may have been made and only the answer lost.
    """

    @functools.wraps(statement)
    def method(self: Repository, /, *args: Any, again: bool = False, **kwargs: Any) -> T:
        def work(connection: Connection) -> T:
            nonlocal again
            has_run = again
            again = True
            return statement(connection, *args, again=has_run, **kwargs)

        return self.database.write(work)

    return method


class Repository:
    """Studies, trials and attempts in one database.

    Every method may raise `DatabaseUnavailableError`; the call can be repeated later. Every method
    that takes a token raises `SupersededError`, and writes nothing, once that attempt is closed or
    no longer its trial's current one. Every method that needs a study raises `UnknownStudyError` if
    there is none.
    """

    accept_definition = writing(studies.accept_definition)
    accept_search = writing(studies.accept_search)
    study = reading(studies.read_study)
    definition_changes = reading(studies.definition_changes)
    has_begun = reading(studies.has_begun)
    study_names = reading(studies.study_names)
    trial_numbers = reading(studies.trial_numbers)
    optuna_ids = reading(studies.optuna_ids)
    stamps = reading(stored_results.read_stamps)
    set_target = writing(studies.set_target)

    join = writing(leases.join)
    leave = writing(leases.leave)
    workers = reading(leases.read_workers)
    renew = writing(leases.renew)

    request_stop = writing(requests.request_stop)
    stop_requested = reading(requests.stop_requested)
    clear_stop = writing(requests.clear_stop)
    observe = writing(requests.observe)
    tag = writing(requests.tag)
    note = writing(requests.note)
    hide = writing(requests.hide)
    now = reading(requests.now)
    retry = writing_once(requests.retry)
    retry_failed = writing(requests.retry_failed)

    finish = writing_once(attempts.finish)
    record_process = writing(attempts.record_process)
    record_fingerprint = writing(attempts.record_fingerprint)
    record_files = writing(attempts.record_files)
    record_parameter = writing(attempts.record_parameter)
    propose = writing(attempts.propose)
    space_notices = reading(attempts.space_notices)
    record_epochs = writing(attempts.record_epochs)
    record_checkpoint = writing(attempts.record_checkpoint)
    forget_checkpoint = writing(attempts.forget_checkpoint)
    move_checkpoints = writing(attempts.move_checkpoints)
    drop_checkpoints = writing(attempts.drop_checkpoints)

    status = reading(stored_results.read_status)
    statuses = reading(stored_results.read_statuses)
    results = reading(stored_results.read_results)
    trial = reading(stored_results.read_trial)
    trials = reading(stored_results.read_trials)
    environments = reading(stored_results.read_environments)
    unfinished = reading(stored_results.read_unfinished)
    failing_alike = reading(stored_results.failing_alike)
    finished_before = reading(lengths.finished_before)
    foreign_observations = reading(lengths.foreign_observations)
    other_parameters = reading(other_parameters)

    record_audit = writing(verdicts.record_audit)
    accept_inexact = writing(verdicts.accept_inexact)
    audit_costs = reading(verdicts.audit_costs)
    exactness = reading(verdicts.exactness)

    record_verdict = writing(verdicts.record_verdict)
    fingerprints = reading(verdicts.fingerprints)

    record_evaluation = writing(verdicts.record_evaluation)

    plan_extension = reading(lengths.plan_extension)
    extend = writing(lengths.extend)

    accept_while_nothing_has_a_value = writing(requests.accept_while_nothing_has_a_value)
    at_work = reading(requests.at_work)
    check_at_rest = reading(requests.check_at_rest)
    delete_study = writing(requests.delete_study)
    rename_study = writing(requests.rename_study)
    names_of_renamed = reading(requests.names_of_renamed)

    def __init__(self, database: Database) -> None:
        self.database = database

    def with_patience(self, seconds: float) -> Repository:
        """Return the same repository for a caller that waits at most ``seconds`` for the database."""
        return Repository(self.database.with_patience(seconds))

    def create_or_open(self, row: StudyRow) -> StudyRow:
        """Create the study in Optuna's and sweeper's tables, or open it; return the stored row.

        The stored total may differ from ``row.target``; `set_target` changes it.
        """
        try:
            return self.database.write(lambda c: studies.create_or_open(c, row))
        except IntegrityError:
            # Another process has created it meanwhile.
            return self.database.write(lambda c: studies.create_or_open(c, row))

    def claim(
        self,
        name: str,
        worker: WorkerIdentity,
        trial_seed: TrialSeed,
        *,
        key: str | None = None,
        **options: Any,
    ) -> Claim | Waiting | None:
        """Claim a trial; see `sweeper.db.claims.claim`. A call without a ``key`` cannot be repeated."""
        # One key for all tries of the transaction, of which an earlier one may have been committed.
        key = key or uuid.uuid4().hex
        return self.database.write(
            lambda c: claims.claim(c, name, worker, trial_seed, key=key, **options)
        )

    def release_lost(
        self, study: str, *, observer: str | None = None, lease_seconds: float = 60.0
    ) -> tuple[LostAttempt, ...]:
        """Close the open attempts of workers that are gone, as "lost"; call it before claiming.

        A process that is gone from this host is known at once; any other worker is gone when its
        lease has expired on the database's clock. With an ``observer``, the key of the calling
        worker, expired leases count only once that worker has been connected for ``lease_seconds``:
        until then, workers that were disconnected with it may return.
        """
        # Read first, because most calls find none, and a writer blocks all others.
        suspects = self.database.read(lambda c: leases.suspects(c, study, observer, lease_seconds))
        if not suspects:
            return ()
        return self.database.write(lambda c: leases.close_lost(c, suspects))
