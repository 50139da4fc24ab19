"""A study's row: created once, compared on every later opening, found by name.

The stored definition is the one that the finished trials were run under. A study that now says
something else would mix two experiments in one set of results, so it is refused, key by key.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from sweeper.errors import (
    DefinitionChangedError,
    DefinitionError,
    StorageError,
    UnknownStudyError,
)
from sweeper.searching import Direction
from sweeper.storage import optuna_rows
from sweeper.storage.tables import DefinitionChange, Study, Trial, UtcNow

__all__ = [
    "AcceptedChange",
    "StudyRow",
    "accept_definition",
    "begun_trials",
    "create_or_open",
    "definition_changes",
    "find_study",
    "lock_study",
    "row_of",
    "set_target",
    "study_names",
]

_LARGEST_SEED = 2**63 - 1
_MAY_DIFFER = ("target", "trials", "time_limit", "study_time_limit", "retries")
_COMPARED_FIELDS = ("objective", "direction", "window", "seed")


@dataclass(frozen=True, slots=True)
class StudyRow:
    """What the database keeps of a study's definition.

    Attributes:
        name: Unique in the database.
        definition: Plain JSON, compared key by key when the study is opened again; but for the
            objectives in it, opaque here.
        objective: The metric that Optuna's values are.
        target: The exact total of trials.
        window: How far trials look back: trial n starts only when all trials up to n - window are
            finished, and as long as fewer run than the definition's ``concurrency``. None where the sampler looks at no results.
        seed: The study's, from 0 to 2**63 - 1.
        source: Where the definition came from, as plain JSON, so that a study can be resumed by
            its name. Not compared; the latest one given is kept.
    """

    name: str
    definition: Mapping[str, Any]
    objective: str
    direction: Direction
    target: int
    window: int | None
    seed: int
    source: Mapping[str, Any] | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Of every objective, in order; those after the first stand in the definition alone."""
        further = self.definition.get("further_objectives", ())
        return (self.direction, *(direction for _name, direction in further))


@dataclass(frozen=True, slots=True)
class AcceptedChange:
    """A change of a study's definition that was accepted.

    Attributes:
        begun: How many trials had begun under the definition before.
        changes: What changed, a phrase each.
    """

    begun: int
    changes: tuple[str, ...]


def create_or_open(connection: Connection, row: StudyRow) -> StudyRow:
    """Insert the study with Optuna's, or check it against the stored one; return what is stored.

    Raises:
        DefinitionChangedError: The stored study was defined otherwise.
        DefinitionError: Optuna has a study of this name that sweeper did not make, or a number
            is out of range.
    """
    # Optuna's names first: both halves are committed at once, so whoever sees another process's
    # new study here sees ours below too, and does not take it for one that only Optuna has.
    taken = row.name in optuna_rows.study_names(connection)
    found = connection.execute(sa.select(Study).where(Study.name == row.name)).first()
    if found is not None:
        stored = row_of(found)
        _check_unchanged(stored, row)
        if row.source is not None and _plain(row.source) != stored.source:
            connection.execute(
                sa.update(Study).where(Study.id == found.id).values(source=_text(row.source))
            )
            found = connection.execute(sa.select(Study).where(Study.id == found.id)).one()
        return row_of(found)
    _check_numbers(row)
    if taken:
        msg = (
            f"the database holds a study {row.name!r} that Optuna made without sweeper; "
            "give this study another name, or use another database (--storage)"
        )
        raise DefinitionError(msg)
    optuna_study_id = optuna_rows.create_study(connection, row.name, row.directions)
    connection.execute(
        sa.insert(Study).values(
            name=row.name,
            optuna_study_id=optuna_study_id,
            definition=_text(row.definition),
            objective=row.objective,
            direction=row.direction,
            target=row.target,
            window=row.window,
            seed=row.seed,
            source=None if row.source is None else _text(row.source),
            created_at=UtcNow(),
            sweeper_version=_version(),
        )
    )
    return row_of(find_study(connection, row.name))


def find_study(connection: Connection, name: str) -> Row[Any]:
    """Return the columns of the named study.

    Raises:
        UnknownStudyError: There is none; the message lists near names, or those that exist.
    """
    return _require(connection, name, sa.select(Study).where(Study.name == name))


def lock_study(connection: Connection, name: str) -> Row[Any]:
    """Return the named study's columns, and let nobody else claim in it until this commits.

    Raises:
        UnknownStudyError: There is none.
        StorageError: Optuna's part of it was deleted.
    """
    study = _require(connection, name, sa.select(Study).where(Study.name == name).with_for_update())
    if not optuna_rows.lock_study(connection, study.optuna_study_id):
        msg = (
            f"study {name!r} was deleted by one of Optuna's tools, and only sweeper's half of it "
            "is left; run it under another name"
        )
        raise StorageError(msg)
    return study


def study_names(connection: Connection) -> tuple[str, ...]:
    """Return the names of all studies, the oldest first."""
    return tuple(connection.scalars(sa.select(Study.name).order_by(Study.id)))


def set_target(connection: Connection, name: str, target: int) -> StudyRow:
    """Change the exact total of trials; return the study as it now is.

    Raises:
        UnknownStudyError: There is no such study.
        DefinitionError: More trials than ``target`` have begun, or it is below 1.
    """
    study = lock_study(connection, name)
    begun = begun_trials(connection, study.id)
    if target < max(begun, 1):
        msg = (
            f"trials={target} for study {name!r}, of which {begun} trials have begun; "
            f"the total can be raised, or lowered to {max(begun, 1)}"
        )
        raise DefinitionError(msg)
    connection.execute(sa.update(Study).where(Study.id == study.id).values(target=target))
    return row_of(find_study(connection, name))


def accept_definition(connection: Connection, row: StudyRow) -> tuple[str, ...]:
    """Put ``row``'s definition in the stored one's place, and record what that changed.

    Trials that are finished stay as they are; trials that have begun go on under the new one.

    Returns:
        What changed, a phrase each; nothing is written where nothing did.

    Raises:
        UnknownStudyError: There is no such study.
        DefinitionError: The direction changed, by which the finished trials are ranked.
    """
    study = lock_study(connection, row.name)
    stored = row_of(study)
    changes = tuple(_changes(stored, row))
    if not changes:
        return ()
    if stored.directions != row.directions:
        was, now = " and ".join(stored.directions), " and ".join(row.directions)
        msg = (
            f"study {row.name!r} was created to {was} and is now to {now}; "
            "its finished trials would be ranked the other way round: give it another name"
        )
        raise DefinitionError(msg)
    connection.execute(
        sa.update(Study)
        .where(Study.id == study.id)
        .values(
            definition=_text(row.definition),
            objective=row.objective,
            window=row.window,
            seed=row.seed,
        )
    )
    connection.execute(
        sa.insert(DefinitionChange).values(
            study_id=study.id,
            changed_at=UtcNow(),
            begun=begun_trials(connection, study.id),
            changes=json.dumps(changes),
        )
    )
    return changes


def definition_changes(connection: Connection, name: str) -> tuple[AcceptedChange, ...]:
    """The changes of the definition that were accepted, the oldest first.

    Raises:
        UnknownStudyError: There is no such study.
    """
    study = find_study(connection, name)
    rows = connection.execute(
        sa.select(DefinitionChange)
        .where(DefinitionChange.study_id == study.id)
        .order_by(DefinitionChange.id)
    )
    return tuple(AcceptedChange(row.begun, tuple(json.loads(row.changes))) for row in rows)


def begun_trials(connection: Connection, study_id: int) -> int:
    """Return how many trials of the study have begun; the next one has this number."""
    last = connection.scalar(sa.select(sa.func.max(Trial.number)).where(Trial.study_id == study_id))
    return 0 if last is None else int(last) + 1


def row_of(study: Row[Any]) -> StudyRow:
    """Return the record of a study's columns."""
    return StudyRow(
        name=study.name,
        definition=json.loads(study.definition),
        objective=study.objective,
        direction=study.direction,
        target=study.target,
        window=study.window,
        seed=study.seed,
        source=None if study.source is None else json.loads(study.source),
    )


def _require(connection: Connection, name: str, query: sa.Select[Any]) -> Row[Any]:
    study = connection.execute(query).first()
    if study is not None:
        return study
    names = study_names(connection)
    near = difflib.get_close_matches(name, names)
    if near:
        hint = f"did you mean {', '.join(map(repr, near))}?"
    elif names:
        hint = f"it has {', '.join(map(repr, names[:20]))}{' and more' * (len(names) > 20)}"
    else:
        hint = "it has none; run a study first (sweeper run FILE)"
    msg = f"the database has no study {name!r}; {hint}"
    raise UnknownStudyError(msg)


def _check_numbers(row: StudyRow) -> None:
    if not 0 <= row.seed <= _LARGEST_SEED:
        msg = f"seed={row.seed}; expected a whole number from 0 to 2**63 - 1"
        raise DefinitionError(msg)
    if row.target < 1:
        msg = f"trials={row.target}; expected 1 or more"
        raise DefinitionError(msg)
    if row.window is not None and row.window < 1:
        msg = f"window={row.window}; expected 1 or more"
        raise DefinitionError(msg)


def _check_unchanged(stored: StudyRow, given: StudyRow) -> None:
    changes = _changes(stored, given)
    if changes:
        msg = (
            f"study {given.name!r} was defined otherwise when it was created: "
            f"{'; '.join(changes)}. Its finished trials belong to the old definition: restore it, "
            "give the new one another name, or accept the mixture with --accept-changes"
        )
        raise DefinitionChangedError(msg)


def _changes(stored: StudyRow, given: StudyRow) -> list[str]:
    """What differs, a phrase each; ``window`` and the like only where the definition does not."""
    changes = list(_differences("", stored.definition, _plain(given.definition)))
    if changes:
        return changes
    return [
        _change(field, getattr(stored, field), getattr(given, field))
        for field in _COMPARED_FIELDS
        if getattr(stored, field) != getattr(given, field)
    ]


_MISSING = object()


def _differences(prefix: str, stored: Any, given: Any) -> Iterator[str]:
    """Yield one sentence for each key whose values differ, totals and policy excepted."""
    for key in [*stored, *(key for key in given if key not in stored)]:
        if not prefix and key in _MAY_DIFFER:
            continue
        before, after = stored.get(key, _MISSING), given.get(key, _MISSING)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(f"{prefix}{key}.", before, after)
        elif _text(before) != _text(after):
            yield _change(f"{prefix}{key}", before, after)


def _change(key: str, before: object, after: object) -> str:
    was = "absent" if before is _MISSING else repr(before)
    now = "absent" if after is _MISSING else repr(after)
    return f"{key} was {was} and is now {now}"


def _text(value: object) -> str:
    """Return JSON that tells 1 from True and 1.0; an absent value is no JSON at all."""
    if value is _MISSING:
        return ""
    try:
        return json.dumps(value)
    except TypeError as error:
        msg = f"a study's definition must be plain JSON: {error}"
        raise DefinitionError(msg) from error


def _plain(value: Mapping[str, Any]) -> Mapping[str, Any]:
    plain: Mapping[str, Any] = json.loads(_text(dict(value)))
    return plain


def _version() -> str:
    try:
        return metadata.version("sweeper")
    except metadata.PackageNotFoundError:
        return "not installed"
