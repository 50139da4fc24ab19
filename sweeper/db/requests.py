"""Requests to a study: stop, retry, restart, removal.

Optuna's and sweeper's rows of a study are removed or renamed in one transaction, and only while
nothing runs.

A request to stop is in the study's row, which every worker polls; it holds until the study is
started again.

A trial does not resume from checkpoints of another definition. A trial that starts again keeps its
number and its attempts' rows and files; its parameters, epochs, checkpoints, evaluations and audits
are deleted from the database.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows, studies
from sweeper.db.claims import TrialSeed
from sweeper.db.leases import read_workers, suspects
from sweeper.db.observations import (
    add_observations,
    use_from_start,
    withdraw_observations,
)
from sweeper.db.rungs import check_not_compared, forget_rungs, is_compared
from sweeper.db.tables import (
    UNFINISHED,
    UNPROPOSED,
    AnyRow,
    Attempt,
    Audit,
    Checkpoint,
    Epoch,
    Evaluation,
    Length,
    Parameter,
    Study,
    Trial,
    UtcNow,
    Verdict,
    change,
    count,
)
from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.repeating import CONFIRMING, Repeating
from sweeper.errors import UsageError
from sweeper.search.spaces import from_text, observed_value, to_optuna

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def accept_while_nothing_has_a_value(
    connection: Connection, row: studies.StudyRow, trial_seed: TrialSeed
) -> tuple[tuple[str, ...], int]:
    """Accept a changed definition without a request, if it mixes no results; return the changes.

    That is so if no trial has a value, none is running, and no interrupted one has trained. Trials that
    have started, also failed ones, then start again under the new definition; their number is returned, too.
    """
    study = studies.lock_study(connection, row.name)
    trials = studies.begun_trials(connection, study.id)
    if any(trial.result in ("complete", "pruned") or trial.running for trial in trials):
        return (), 0
    unfinished = [trial.id for trial in trials if trial.result is None]
    if any(count(connection, table.trial_id.in_(unfinished)) for table in (Checkpoint, Epoch)):
        return (), 0
    changes = studies.accept_definition(connection, row, search_alone=True)
    if not changes:
        return (), 0
    connection.execute(sa.delete(Parameter).where(Parameter.study_id == study.id))
    for trial in trials:
        begin_anew(connection, trial, seed=trial_seed(trial.number))
    use_from_start(connection, study)
    return changes, len(trials)


def begin_anew(connection: Connection, trial: AnyRow, *, seed: int | None = None) -> None:
    """Make a trial that does not run start from scratch at its next attempt, with a new ``seed`` if given."""
    for table in (Length, Epoch, Checkpoint, Audit, Verdict, Evaluation):
        connection.execute(sa.delete(table).where(table.trial_id == trial.id))
    forget_rungs(connection, trial.id)
    seed = trial.seed if seed is None else seed
    columns = {
        **UNFINISHED,
        **UNPROPOSED,
        "ignore_checkpoints_through": trial.current_attempt,
        "seed": seed,
    }
    change(connection, Trial, trial.id, **columns)
    optuna_rows.reopen_trial(connection, trial.optuna_trial_id, anew=True)


def ran_under_another_definition(connection: Connection, study: AnyRow, trial: AnyRow) -> bool:
    """Return whether the latest attempt at a trial ran under another definition than the study's."""
    latest = connection.scalar(
        sa.select(Attempt.definition).where(
            Attempt.trial_id == trial.id, Attempt.number == trial.current_attempt
        )
    )
    return latest is not None and latest != study.fingerprint


def observe(
    connection: Connection,
    name: str,
    observations: Sequence[ForeignObservation],
    source: str,
    *,
    clear: bool = False,
) -> Observing:
    """Give the study's sampler observations for the trials that have not begun.

    With ``clear``, it uses none of the earlier ones any more. The same ones from the same source count once.

    Raises:
        UsageError: No trial has suggested a parameter that an observation has.
    """
    study = studies.lock_study(connection, name)
    rows = connection.execute(_LATEST_RANGES, {"study_id": study.id})
    known = {row.name: row.distribution for row in rows}
    names = dict.fromkeys(n for observation in observations for n in observation.params)
    unknown = [parameter for parameter in names if parameter not in known]
    if known and unknown:
        near = difflib.get_close_matches(unknown[0], known)
        hint = f"did you mean {near[0]!r}?" if near else "leave out what the study does not vary"
        raise UsageError(
            f"no trial of study {name!r} has suggested {unknown[0]!r}, which {source} has; the trials' "
            f"parameters are {', '.join(map(repr, sorted(known)))}: {hint}"
        )
    since = studies.next_drawn(connection, study)
    withdrawn = 0
    if clear:
        withdrawn = withdraw_observations(connection, study, since, declared=False)
    added = add_observations(connection, study, observations, since, source)
    ranges = {parameter: to_optuna(from_text(text)) for parameter, text in known.items()}
    outside = sum(not _is_inside(observation, ranges) for observation in observations)
    return Observing(added, withdrawn, outside, since)


_LONGEST_TAG = 64


def tag(
    connection: Connection, name: str, number: int, word: str, *, remove: bool = False
) -> tuple[str, ...]:
    """Add a tag to a trial, or remove it; return the trial's tags.

    Raises:
        UsageError: A tag to be added is not one word, or one to be removed is not there.
    """
    if not remove and (len(word.split()) != 1 or len(word) > _LONGEST_TAG or word != word.strip()):
        raise UsageError(
            f"{word!r} cannot be a tag; give one word of at most {_LONGEST_TAG} characters"
        )
    trial = studies.find_trial(connection, studies.lock_study(connection, name), number)
    tags = list(trial.tags or ())
    if remove and word not in tags:
        present = ", ".join(map(repr, tags)) or "none"
        raise UsageError(
            f"trial {number} of study {name!r} has no tag {word!r}; its tags: {present}"
        )
    tags = [other for other in tags if other != word] + [word] * (not remove)
    change(connection, Trial, trial.id, tags=tags or None)
    shown = {"tags": ", ".join(tags) or None}
    optuna_rows.set_attributes(connection, trial.optuna_trial_id, shown)
    return tuple(tags)


def note(connection: Connection, name: str, number: int, text: str) -> None:
    """Store the note of a trial in place of an earlier one; an empty ``text`` deletes it."""
    trial = studies.find_trial(connection, studies.lock_study(connection, name), number)
    change(connection, Trial, trial.id, note=text or None)
    optuna_rows.set_attributes(connection, trial.optuna_trial_id, {"note": text or None})


def hide(connection: Connection, name: str, number: int, *, undo: bool = False) -> tuple[int, ...]:
    """Hide a trial, or show it again; return the numbers of all trials that are hidden with it.

    These are the repeats of its configuration, and the trials with its result.

    Raises:
        UsageError: The study is a confirmation, which compares all of its configurations.
    """
    study = studies.lock_study(connection, name)
    repeating = Repeating.of(study.definition)
    if repeating.confirmed:
        raise UsageError(
            f"{name!r} is a confirmation; hide a trial of the study {name.removesuffix(CONFIRMING)!r}"
        )
    trial = studies.find_trial(connection, study, number)
    configuration = repeating.configuration_of(
        trial.number if trial.reuses is None else trial.reuses
    )
    rows = studies.begun_trials(connection, study.id)
    originals = {r.number for r in rows if repeating.configuration_of(r.number) == configuration}
    affected = [row for row in rows if row.number in originals or row.reuses in originals]
    for row in affected:
        change(connection, Trial, row.id, hidden=not undo)
        optuna_rows.set_attributes(
            connection, row.optuna_trial_id, {"hidden": None if undo else True}
        )
    return tuple(row.number for row in affected)


@dataclass(frozen=True, slots=True)
class Observing:
    """Answer to observations.

    Attributes:
        added: Number of new ones.
        withdrawn: Number of earlier ones that are not used any more.
        outside: Number of those given with a value outside of the present ranges.
        since: Number of the first trial for which this holds.
    """

    added: int
    withdrawn: int
    outside: int
    since: int


def _is_inside(observation: ForeignObservation, ranges: Mapping[str, BaseDistribution]) -> bool:
    try:
        for name, value in observation.params.items():
            if name in ranges:
                observed_value(ranges[name], value)
    except ValueError:
        return False
    return True


_LATEST_RANGES = (
    sa.select(Parameter.name, Parameter.distribution)
    .where(Parameter.study_id == sa.bindparam("study_id"))
    .order_by(Parameter.number)
)


StopRequest = Literal["drain", "kill"]
"""``"drain"``: finish the step, write a checkpoint and stop. ``"kill"``: kill the trials' processes."""


def request_stop(connection: Connection, name: str, request: StopRequest) -> None:
    """Store a request to stop, which also blocks claims until `clear_stop`."""
    study = studies.lock_study(connection, name)
    change(connection, Study, study.id, stop_requested=request, stop_requested_at=UtcNow())


def stop_requested(connection: Connection, name: str) -> StopRequest | None:
    """Return the request to stop the study's workers; None if there is none or no such study."""
    request = connection.scalar(sa.select(Study.stop_requested).where(Study.name == name))
    return cast("StopRequest | None", request)


def clear_stop(connection: Connection, name: str, until: datetime | None = None) -> None:
    """Delete a request to stop, unless it was made after the time ``until``, of the database's clock."""
    study = studies.lock_study(connection, name)
    cleared = sa.update(Study).where(Study.id == study.id).values(stop_requested=None)
    if until is not None:
        cleared = cleared.where(Study.stop_requested_at <= until)
    connection.execute(cleared)


def now(connection: Connection) -> datetime:
    """Return the time of the database's clock."""
    return connection.execute(sa.select(UtcNow())).scalar_one()


def retry(connection: Connection, name: str, number: int, *, again: bool) -> None:
    """Set a failed trial to unfinished, with its faults reset to 0.

    It resumes from its newest checkpoint, or starts from scratch if the definition has changed. Later
    trials whose parameters depended on its failure are not changed. If the call is repeated after a
    lost answer (``again``), an interrupted trial counts as already retried.
    """
    study = studies.lock_study(connection, name)
    trial = studies.find_trial(connection, study, number)
    if trial.result != "failed":
        if again and trial.result is None:
            return
        open_state = "paused" if trial.paused else "interrupted"
        state = trial.result or ("running" if trial.running else open_state)
        hint = "`sweeper resume` continues it" if state == "interrupted" else "it stays as it is"
        raise UsageError(
            f"trial {number} of study {name!r} is {state}, and only a failed trial can be "
            f"retried; {hint}"
        )
    check_not_compared(connection, name, trial)
    _give_another_attempt(connection, study, trial)


def retry_failed(connection: Connection, name: str) -> tuple[int, ...]:
    """Retry every failed trial that is in no decided rung; return their numbers."""
    study = studies.lock_study(connection, name)
    failed = connection.execute(
        sa.select(Trial)
        .where(Trial.study_id == study.id, Trial.result == "failed", ~is_compared())
        .order_by(Trial.number)
    ).all()
    for trial in failed:
        _give_another_attempt(connection, study, trial)
    return tuple(trial.number for trial in failed)


def _give_another_attempt(connection: Connection, study: AnyRow, trial: AnyRow) -> None:
    if ran_under_another_definition(connection, study, trial):
        begin_anew(connection, trial)
        return
    change(connection, Trial, trial.id, **UNFINISHED)
    optuna_rows.reopen_trial(connection, trial.optuna_trial_id)


def at_work(connection: Connection, name: str) -> tuple[str, ...]:
    """Return the workers that have not left, or the number of running trials if there are none."""
    busy = [
        f"a worker on {worker.host} (process {worker.pid})"
        for worker in read_workers(connection, name)
        if worker.live
    ]
    study = studies.find_study(connection, name)
    started = count(connection, Trial.study_id == study.id, studies.is_open())
    running = started - len(suspects(connection, name, None, 0.0))
    if running and not busy:
        busy.append(f"{running} running trial{'s' * (running > 1)}")
    return tuple(busy)


def check_at_rest(connection: Connection, name: str, operation: str) -> None:
    """Check that no worker or trial of the study runs; ``operation`` is a participle for the error."""
    running = at_work(connection, name)
    if running:
        raise UsageError(
            f"study {name!r} cannot be {operation} while it runs ({', '.join(running)}); "
            f"stop it first: sweeper stop {name}"
        )


def delete_study(connection: Connection, name: str) -> None:
    """Delete every row of the study, including Optuna's."""
    # `lock_study` would refuse a study whose rows in Optuna's tables were deleted.
    study = studies.find_study(connection, name)
    # A claim waits for this lock, so no worker starts a trial between the check and the deletion.
    connection.execute(sa.select(Study.id).where(Study.id == study.id).with_for_update())
    check_at_rest(connection, name, "removed")
    connection.execute(sa.delete(Study).where(Study.id == study.id))
    optuna_rows.delete_study(connection, study.optuna_study_id)


def rename_study(connection: Connection, name: str, new: str, moved: Mapping[str, str]) -> None:
    """Rename a study that is at rest to a free name, and change the paths of its files that were ``moved``."""
    study = studies.lock_study(connection, name)
    check_at_rest(connection, name, "renamed")
    if new in (*studies.study_names(connection), *optuna_rows.study_names(connection)):
        raise UsageError(f"the database already has a study {new!r}")
    change(connection, Study, study.id, name=new)
    optuna_rows.rename_study(connection, study.optuna_study_id, new)
    trials = studies.trials_of(study.id)
    of_study = sa.select(Checkpoint).where(Checkpoint.trial_id.in_(trials))
    for row in connection.execute(of_study).all():
        for old_directory, new_directory in moved.items():
            if row.path.startswith(f"{old_directory}/"):
                change(
                    connection,
                    Checkpoint,
                    row.id,
                    path=new_directory + row.path.removeprefix(old_directory),
                )


def names_of_renamed(connection: Connection, name: str) -> tuple[str, ...]:
    """Return the names of earlier studies of this name that were renamed."""
    names = {*studies.study_names(connection), *optuna_rows.study_names(connection)}
    return tuple(sorted(taken for taken in names if taken.startswith(f"{name}~")))
