"""Writes of a worker about its attempt, which are refused once the attempt is superseded.

The disk decides which checkpoints exist: a trial can resume from a complete one that the database
does not list, but not from a listed one that is missing.

Every function first locks the attempt's row and checks that it is open and its trial's current one.
So a worker that was disconnected for a while cannot change anything.

Parameters are stored in Optuna's tables, for Optuna's samplers. The kind of a parameter has another
row, so that its check takes the same time in every trial.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.duplicates import Proposal, pass_on, reuse
from sweeper.db.duplicates import propose as propose_parameters
from sweeper.db.observations import observations_of
from sweeper.db.repeats import skip_remaining
from sweeper.db.rungs import DecidedRung, lock_rounds, record_rung_value, settle
from sweeper.db.studies import find_study, find_trial
from sweeper.db.tables import (
    Attempt,
    Checkpoint,
    Epoch,
    Parameter,
    Study,
    Trial,
    UtcNow,
    change,
    count,
    replace_row,
)
from sweeper.declarations.retries import Fault
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.errors import NonFiniteError, ParameterError, StorageError, SupersededError
from sweeper.records.results import CheckpointRecord, EpochRecord, ErrorKind, Outcome
from sweeper.search.spaces import check_alike, from_text, range_text, to_text

_LONGEST_NAME = 512
"""Maximum length of a parameter's name: that of its column."""

_REVISIONS = sa.select(Parameter.number, Parameter.distribution).where(
    Parameter.study_id == sa.bindparam("study_id"), Parameter.name == sa.bindparam("name")
)
_LATEST = _REVISIONS.order_by(Parameter.number.desc()).limit(1)
_FIRST = _REVISIONS.order_by(Parameter.number).limit(1)


_CURRENT = (
    sa.select(
        Trial.id,
        Trial.number,
        Trial.current_attempt,
        Trial.optuna_trial_id,
        Trial.study_id,
        Study.name.label("study"),
        Attempt.number.label("attempt"),
        Attempt.outcome,
    )
    .join(Trial, Trial.id == Attempt.trial_id)
    .join(Study, Study.id == Trial.study_id)
    .where(Attempt.id == sa.bindparam("token"))
    # Until the transaction ends, no other worker can close or replace the attempt.
    .with_for_update(of=Attempt)
)


@dataclass(frozen=True, slots=True)
class Ending:
    """End of an attempt: outcome, error and result.

    Attributes:
        outcome: "complete", "pruned" and "failed" end the trial; "interrupted" never does, and
            "paused" leaves that to its rung's decision.
        end_step: Optimizer steps finished, counted over the whole trial.
        value, further_values: The objectives; needed for "complete", and infinite at worst.
        digest: Digest of the final training state, for "complete" and "pruned".
        error: The error with its traceback, or why it was stopped.
        error_kind: See `TrialStatus.error_kind`; None if it was stopped without an error.
        final: Whether a crashed or lost attempt was the trial's last, so that the trial has failed.
        value_of: See `TrialRecord.value_of`.
        fault: Kind of fault to count; an outcome "crashed" counts as a crash by itself.
        will_resume: Whether the trial will be resumed although the attempt has failed.
        rung: Number of epochs after which a paused attempt stopped.
        draws_again: Whether a trial that has not trained draws its parameters again when it is resumed.
        reuses: Number of the trial whose result a "reused" one takes.
    """

    outcome: Outcome
    end_step: int | None = None
    value: float | None = None
    digest: str | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    final: bool = False
    further_values: tuple[float, ...] = ()
    value_of: str | None = None
    fault: Fault | None = None
    will_resume: bool = False
    rung: int | None = None
    draws_again: bool = False
    reuses: int | None = None

    @property
    def result(self) -> optuna_rows.TrialResult | None:
        """Return the trial's result; None if the trial will be resumed."""
        if self.outcome == "failed" and self.will_resume:
            return None
        if self.outcome in ("complete", "pruned", "failed"):
            return self.outcome
        return "failed" if self.final and self.outcome != "interrupted" else None


def record_process(
    connection: Connection, token: int, pid: int, isolation: str, start_step: int | None
) -> None:
    lock_current(connection, token)
    change(connection, Attempt, token, pid=pid, isolation=isolation, start_step=start_step)


def record_fingerprint(
    connection: Connection, token: int, fingerprint: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Store the attempt's environment fingerprint as JSON; return the previous attempt's."""
    trial = lock_current(connection, token)
    change(connection, Attempt, token, fingerprint=dict(fingerprint))
    return connection.scalar(
        sa.select(Attempt.fingerprint)
        .where(
            Attempt.trial_id == trial.id,
            Attempt.number < trial.attempt,
            Attempt.fingerprint.is_not(None),
        )
        .order_by(Attempt.number.desc())
        .limit(1)
    )


_WROTE = ("wrote", "left")
"""Keys of a file's use that name what a trial left."""


def record_files(
    connection: Connection, token: int, files: Mapping[str, Any]
) -> tuple[tuple[str, int, Mapping[str, Any]], ...]:
    """Store the files that an attempt read and wrote; return study, number and files of others, the oldest first.

    Others are the attempts in the database that wrote a file, the latest one at another trial of this
    study, and the earlier ones at this trial.
    """
    trial = lock_current(connection, token)
    change(connection, Attempt, token, files=dict(files))
    latest = (
        sa.select(sa.func.max(Attempt.id))
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Trial.study_id == trial.study_id, Trial.id != trial.id, Attempt.files.is_not(None))
        .scalar_subquery()
    )
    rows = connection.execute(
        sa.select(Study.name, Trial.number, Attempt.files)
        .join(Trial, Trial.id == Attempt.trial_id)
        .join(Study, Study.id == Trial.study_id)
        .where(
            Attempt.id != token,
            Attempt.files.is_not(None),
            sa.or_(
                *(sa.type_coerce(Attempt.files, sa.Text).like(f'%"{key}"%') for key in _WROTE),
                Attempt.id == latest,
                Attempt.trial_id == trial.id,
            ),
        )
        .order_by(Attempt.id)
    )
    return tuple((row.name, row.number, row.files) for row in rows)


def record_parameter(
    connection: Connection,
    token: int,
    name: str,
    distribution: Distribution,
    value: CategoricalChoice,
) -> CategoricalChoice:
    """Store a parameter unless an earlier attempt did; return the stored value."""
    trial = lock_current(connection, token)
    row = optuna_rows.parameter(connection, trial.optuna_trial_id, name)
    if row is not None:
        stored_distribution, stored_value = row
        check_alike(name, distribution, stored_distribution, trial.number)
        return stored_value
    if len(name) > _LONGEST_NAME:
        raise ParameterError(
            f"parameter {name[:40]!r}… has a name of {len(name)} characters; use at most 512"
        )
    key = {"study_id": trial.study_id, "name": name}
    latest = connection.execute(_LATEST, key).first()
    if latest is not None:
        check_alike(name, distribution, from_text(latest.distribution), latest.number)
    if latest is None or latest.distribution != to_text(distribution):
        # Only a worker needs this, and readers do not import two dialects.
        dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
        connection.execute(
            dialect.insert(Parameter).on_conflict_do_nothing(),
            {**key, "number": trial.number, "distribution": to_text(distribution)},
        )
        # Another trial may have inserted the first row meanwhile; the kind is that of its parameter.
        first = connection.execute(_FIRST, key).one()
        check_alike(name, distribution, from_text(first.distribution), first.number)
    optuna_rows.add_parameter(connection, trial.optuna_trial_id, name, distribution, value)
    return value


def space_notices(
    connection: Connection, study: str, number: int, names: Collection[str], *, first: bool
) -> tuple[str, ...]:
    """Return what is new in the parameters ``names`` of a trial whose factories have run, one sentence each.

    These are ranges that no earlier trial has, and, for the ``first`` trial of a run, observations of parameters
    that no trial has suggested.
    """
    row = find_study(connection, study)
    rows = connection.execute(
        sa.select(Parameter).where(Parameter.study_id == row.id).order_by(Parameter.number)
    ).all()
    trial = find_trial(connection, row, number)
    drawn = optuna_rows.parameters(connection, (trial.optuna_trial_id,))[trial.optuna_trial_id]
    notices = []
    for name, distribution in drawn.distributions.items():
        earlier = [r.distribution for r in rows if r.name == name and r.number < number]
        if name in names and earlier and to_text(distribution) not in earlier:
            notices.append(
                f"the range of {name!r} is {range_text(distribution)} from trial {number} on; it was "
                f"{range_text(from_text(earlier[-1]))}. All trials are ranked together"
            )
    observations = observations_of(connection, row.id) if first else ()
    unknown = {n for observation in observations for n in observation.params}
    unknown -= {parameter.name for parameter in rows}
    if unknown:
        notices.append(
            f"observations have {', '.join(map(repr, sorted(unknown)))}, which no trial has suggested; "
            f"trial {number} suggested {', '.join(map(repr, drawn.params)) or 'nothing'}"
        )
    return tuple(notices)


def propose(connection: Connection, token: int, *, alone: bool = False) -> Proposal:
    """Decide what becomes of a trial whose factories have run; see `sweeper.db.duplicates`.

    ``alone`` is of a trial whose result depends on its number, so that no other trial has it.
    """
    return propose_parameters(connection, lock_current(connection, token), alone=alone)


def record_epochs(
    connection: Connection,
    token: int,
    epochs: Sequence[EpochRecord],
    values: Mapping[int, float] | None = None,
) -> None:
    """Store finished epochs, and the objective by epoch as Optuna's intermediate values."""
    trial = lock_current(connection, token)
    if epochs:
        same_epochs = Epoch.epoch.in_([record.epoch for record in epochs])
        # A resumed trial reports the epochs after its checkpoint a second time.
        connection.execute(sa.delete(Epoch).where(Epoch.trial_id == trial.id, same_epochs))
        connection.execute(
            sa.insert(Epoch),
            [
                {
                    "trial_id": trial.id,
                    "epoch": record.epoch,
                    "metrics": {n: float(v) for n, v in record.metrics.items()},
                }
                for record in epochs
            ],
        )
    optuna_rows.set_intermediate_values(connection, trial.optuna_trial_id, values or {})


def record_checkpoint(connection: Connection, token: int, checkpoint: CheckpointRecord) -> None:
    """Store a committed checkpoint, replacing one at the same path."""
    trial = lock_current(connection, token)
    columns = asdict(checkpoint)
    key = {"trial_id": trial.id, "path": columns.pop("path")}
    replace_row(connection, Checkpoint, key, attempt=trial.attempt, **columns)


def forget_checkpoint(connection: Connection, token: int, path: str) -> None:
    """Delete the row of a checkpoint of this trial, of any attempt, if it exists."""
    _forget(connection, lock_current(connection, token).id, path)


def move_checkpoints(
    connection: Connection, token: int, moved: Mapping[str, str], gone: Collection[str] = ()
) -> None:
    """Update the paths of ``moved`` checkpoints of this trial, and delete the rows of those ``gone``."""
    trial = lock_current(connection, token)
    for path in gone:
        _forget(connection, trial.id, path)
    for old_path, new_path in moved.items():
        # A path is unique, and a row may have it from an earlier move.
        _forget(connection, trial.id, new_path)
        connection.execute(
            sa.update(Checkpoint)
            .where(Checkpoint.trial_id == trial.id, Checkpoint.path == old_path)
            .values(path=new_path)
        )


def finish(
    connection: Connection, token: int, ending: Ending, *, again: bool
) -> tuple[DecidedRung, ...]:
    """Close the attempt, and with it the trial unless it will be resumed; return newly decided rungs.

    An attempt that is already closed in the same way is no error if the call may repeat one whose answer
    was lost (``again``).
    """
    if ending.outcome == "complete" and ending.value is None:
        raise StorageError(
            "a complete trial needs a value; finish it as failed, or give the objective"
        )
    values = () if ending.value is None else (ending.value, *ending.further_values)
    if ending.outcome == "complete" and any(math.isnan(value) for value in values):
        raise NonFiniteError(
            "the objective is NaN, so the trial cannot be ranked; lower the learning rate, or "
            "choose another objective"
        )
    outcome = sa.select(Attempt.outcome).where(Attempt.id == token)
    if again and connection.scalar(outcome) == ending.outcome:
        return ()
    decides = ending.result is not None or ending.outcome == "paused"
    # Before the attempt's row: a claim locks the study first, and the reverse order would cause a deadlock.
    study = lock_rounds(connection, token) if decides else None
    trial = lock_current(connection, token)
    change(
        connection,
        Attempt,
        token,
        ended_at=UtcNow(),
        outcome=ending.outcome,
        end_step=ending.end_step,
        error=ending.error,
        error_kind=ending.error_kind,
    )
    fault = ending.fault or ("crash" if ending.outcome == "crashed" else None)
    change(
        connection,
        Trial,
        trial.id,
        crashes=Trial.crashes + int(fault == "crash"),
        memory_faults=Trial.memory_faults + int(fault == "memory"),
        errors=Trial.errors + int(fault == "error"),
        result=ending.result,
        digest=ending.digest if ending.result in ("complete", "pruned") else None,
        value_of=ending.value_of,
    )
    counts = (count(connection, table.trial_id == trial.id) for table in (Checkpoint, Epoch))
    if ending.draws_again and not any(counts):
        optuna_rows.reopen_trial(connection, trial.optuna_trial_id, anew=True)
    if ending.result is not None:
        optuna_rows.finish_trials(connection, ending.result, {trial.optuna_trial_id: values})
        # After the values, which the trials that reuse this one copy.
        pass_on(connection, trial.id)
    _show_ending(connection, trial, ending)
    if ending.result == "pruned":
        skip_remaining(connection, trial.study_id, trial.number)
    if ending.reuses is not None:
        reuse(connection, trial.study_id, trial.id, ending.reuses)
    if ending.outcome == "paused":
        if ending.value is None or ending.rung is None:
            raise StorageError(
                "a trial without a value for its rung cannot pause; finish it with another outcome"
            )
        record_rung_value(connection, trial.id, ending.rung, ending.value, ending.digest)
    return () if study is None else settle(connection, study, trial.number)


_LONGEST_REASON = 300


def _show_ending(connection: Connection, trial: Any, ending: Ending) -> None:
    """Store what Optuna's tables have no columns for as user attributes, once a trial ends or pauses.

    No sampler, pruner or record reads them.
    """
    if ending.result is None and ending.outcome != "paused":
        return
    lines = (ending.error or "").strip().splitlines() or ["see its log"]
    reason = lines[-1][:_LONGEST_REASON] if ending.result == "failed" else None
    attributes = {"attempts": trial.attempt, "digest": ending.digest, "failed because": reason}
    optuna_rows.set_attributes(connection, trial.optuna_trial_id, attributes)


def lock_current(connection: Connection, token: int) -> Any:
    """Lock the attempt's row; return its trial's ids if it is open and current."""
    row = connection.execute(_CURRENT, {"token": token}).first()
    if row is None:
        raise SupersededError(
            f"the database has no attempt {token}: this worker's claim is not stored there"
        )
    if row.outcome is None and row.attempt == row.current_attempt:
        return row
    state = f"ended as {row.outcome}" if row.outcome else "open"
    raise SupersededError(
        f"attempt {row.attempt} of trial {row.number} of study {row.study!r} is {state}, and the "
        f"trial's current attempt is {row.current_attempt}; this write is refused, and this "
        "attempt must stop"
    )


def _forget(connection: Connection, trial_id: int, path: str) -> None:
    connection.execute(
        sa.delete(Checkpoint).where(Checkpoint.trial_id == trial_id, Checkpoint.path == path)
    )


def drop_checkpoints(
    connection: Connection, study: str, number: int, paths: Collection[str]
) -> None:
    """Delete the rows of checkpoints of a trial that exist no longer; raise `StorageError` while it runs."""
    trial = find_trial(connection, find_study(connection, study), number)
    if trial.running:
        raise StorageError(
            f"trial {number} of study {study!r} is running and uses its checkpoints; wait until "
            "it has ended"
        )
    connection.execute(
        sa.delete(Checkpoint).where(Checkpoint.trial_id == trial.id, Checkpoint.path.in_(paths))
    )
