"""Requests to a study while workers run it: to stop, or to give a trial another attempt.

A request to stop stands in the study's row, where every worker looks; it holds until somebody
starts the study again.
"""

from __future__ import annotations

from typing import Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.errors import UsageError
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.claims import is_open
from sweeper.storage.queries.descent.totals import decided_below
from sweeper.storage.queries.restarts import begin_anew, ran_under_another_definition
from sweeper.storage.queries.rungs.standing import check_not_compared, is_compared
from sweeper.storage.queries.studies import lock_study, no_such_trial
from sweeper.storage.tables import AnyRow, Study, Trial

StopRequest = Literal["drain", "kill"]
"""``"drain"``: finish the step, checkpoint, stop. ``"kill"``: end the trials' processes at once."""


def request_stop(connection: Connection, name: str, how: StopRequest) -> None:
    """Ask every worker of the study to stop."""
    study = lock_study(connection, name)
    connection.execute(sa.update(Study).where(Study.id == study.id).values(stop_requested=how))


def stop_requested(connection: Connection, name: str) -> StopRequest | None:
    """Return the request to stop the study's workers; None if there is none or no such study."""
    found = connection.scalar(sa.select(Study.stop_requested).where(Study.name == name))
    return cast("StopRequest | None", found)


def clear_stop(connection: Connection, name: str) -> None:
    """Forget a request to stop, because the study is started again."""
    study = lock_study(connection, name)
    if study.stop_requested is not None:
        connection.execute(sa.update(Study).where(Study.id == study.id).values(stop_requested=None))


def retry(connection: Connection, name: str, number: int, *, again: bool = False) -> None:
    """Give a failed trial another attempt: it is unfinished again, and none of its faults count.

    It goes on from its newest checkpoint, or from nothing where the definition is another one now.

    Trials that were begun meanwhile and had this one in their window saw it failed, and stay.
    Where this ran before and the commit's answer was lost (``again``), a trial that waits to be
    resumed is the one that the first run made so.
    """
    study = lock_study(connection, name)
    trial = connection.execute(
        sa.select(Trial, is_open().label("running")).where(
            Trial.study_id == study.id, Trial.number == number
        )
    ).first()
    if trial is None:
        raise no_such_trial(connection, study, number)
    if trial.result != "failed":
        if again and trial.result is None:
            return
        begun = "paused" if trial.paused else "interrupted"
        state = trial.result or ("running" if trial.running else begun)
        hint = "sweeper resume goes on with it" if state == "interrupted" else "it stays as it is"
        msg = (
            f"trial {number} of study {name!r} is {state}; only a failed trial is given another "
            f"attempt, so {hint}"
        )
        raise UsageError(msg)
    check_not_compared(connection, name, trial)
    if number < decided_below(connection, study):
        msg = (
            f"trial {number} of study {name!r} failed, and the generation after its own was decided "
            "without it; another attempt would change what that began from, so it stays as it is"
        )
        raise UsageError(msg)
    _give_another_attempt(connection, study, trial)


def retry_failed(connection: Connection, name: str) -> tuple[int, ...]:
    """Do as `retry` does for every failed trial without which nothing was decided; return their numbers."""
    study = lock_study(connection, name)
    failed = connection.execute(
        sa.select(Trial)
        .where(
            *(Trial.study_id == study.id, Trial.result == "failed", ~is_compared()),
            Trial.number >= decided_below(connection, study),
        )
        .order_by(Trial.number)
    ).all()
    for trial in failed:
        _give_another_attempt(connection, study, trial)
    return tuple(trial.number for trial in failed)


def _give_another_attempt(connection: Connection, study: AnyRow, trial: AnyRow) -> None:
    if ran_under_another_definition(connection, study, trial):
        begin_anew(connection, trial)
        return
    connection.execute(
        sa.update(Trial)
        .where(Trial.id == trial.id)
        .values(result=None, digest=None, crashes=0, memory_faults=0, errors=0)
    )
    optuna_rows.reopen_trial(connection, trial.optuna_trial_id)
