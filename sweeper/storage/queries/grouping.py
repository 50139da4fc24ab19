"""Groups of a study's trials by definition and code, if there were several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.records.code import CodeGroup, short_code
from sweeper.results import BestTrial
from sweeper.storage.queries.studies import trials_of
from sweeper.storage.tables import AnyRow, Attempt, Trial

_Rows = Sequence[AnyRow]


def is_mixed(connection: Connection, study: AnyRow) -> bool:
    """Return whether attempts of the study ran under a definition that is no longer its own."""
    return bool(
        connection.scalar(
            sa.select(
                sa.exists()
                .where(Attempt.trial_id == Trial.id, Trial.study_id == study.id)
                .where(Attempt.definition != study.fingerprint)
            )
        )
    )


def codes_of_trials(connection: Connection, trial_ids: sa.Select[int]) -> dict[int, str]:
    """Return the short form of what each trial ran under, by the trial's id.

    A trial that was gone on with under another definition has both, with ``+`` between. An attempt
    that began from nothing leaves no trace of those before it, and one that trained nothing none.
    """
    rows = connection.execute(
        sa.select(Attempt.trial_id, Attempt.definition, Attempt.start_step)
        .where(Attempt.trial_id.in_(trial_ids))
        .order_by(Attempt.id)
    )
    trained: dict[int, list[str]] = {}
    latest: dict[int, str] = {}
    for row in rows:
        if row.definition is None:
            continue
        code = short_code(row.definition)
        latest[row.trial_id] = code
        if row.start_step == 0:
            trained[row.trial_id] = [code]
        elif row.start_step is not None:
            before = trained.setdefault(row.trial_id, [])
            before += [code] if code not in before else []
    return {trial: "+".join(trained.get(trial, [code])) for trial, code in latest.items()}


def code_groups(
    connection: Connection,
    study: AnyRow,
    trials: _Rows,
    best: Callable[[_Rows], BestTrial | None],
) -> tuple[CodeGroup, ...]:
    """Return the study's trials by what they ran under, in the order of their first trials.

    Args:
        connection: In a transaction.
        study: Its columns.
        trials: Those of its trials.
        best: Finds the best of some of them.
    """
    codes: Mapping[int, str] = codes_of_trials(connection, trials_of(study.id))
    by_code: dict[str, list[AnyRow]] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        by_code.setdefault(codes.get(trial.id, short_code(study.fingerprint)), []).append(trial)
    found = []
    for code, group in by_code.items():
        leader = best(group)
        found.append(
            CodeGroup(
                code=code,
                current=code == short_code(study.fingerprint),
                trials=tuple(trial.number for trial in group),
                best=None if leader is None else leader.number,
                value=None if leader is None else leader.value,
            )
        )
    return tuple(found)
