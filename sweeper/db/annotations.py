"""User attributes of studies and trials in Optuna's tables, for Optuna's tools.

Sweeper does not read them: no sampler, pruner or record depends on them. Only dashboards write
them, and several may run. So a write names the values on which it is based, and is skipped if these
have changed. It is one short transaction with only the changes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from optuna.artifacts import upload_artifact
from optuna.storages import InMemoryStorage
from optuna.storages._rdb import models
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from sweeper.db import optuna_rows
from sweeper.db.database import Statements, reading
from sweeper.db.studies import find_study, row_of
from sweeper.db.tables import Study, Trial
from sweeper.search.spec import quietly

if TYPE_CHECKING:
    from optuna.artifacts._protocol import ArtifactStore

    from sweeper.spec.searching import Direction

_OfStudies: Any = models.StudySystemAttributeModel.__table__
_OfTrials: Any = models.TrialUserAttributeModel.__table__

_IN_MEMORY = "sweeper: attributes in memory"


# Optuna logs each new in-memory study.
logging.getLogger("optuna.storages._in_memory").addFilter(
    lambda record: not record.getMessage().endswith(_IN_MEMORY)
)

Attributes = Mapping[str, Any]
"""JSON values by key."""


@dataclass(frozen=True, slots=True)
class StudyAttributes:
    """Attributes of a study for Optuna's tools: notes, plots, names and artifacts.

    Attributes:
        study: Its name.
        optuna_id: Its number in Optuna's tables and in optuna-dashboard's addresses.
        directions: Directions of its objectives.
        values: The attributes by key.
    """

    study: str
    optuna_id: int
    directions: tuple[Direction, ...]
    values: Attributes

    def edited(self, edit: Callable[[OptunaStudy], None]) -> Attributes:
        """Return the attributes changed by ``edit``, which gets an in-memory study with only these.

        So functions of Optuna and optuna-dashboard define the form of notes, plots and artifacts,
        and only `Annotations.replace` writes to the database.
        """
        storage = InMemoryStorage()
        directions = [StudyDirection[direction.upper()] for direction in self.directions]
        study_id = storage.create_new_study(directions, _IN_MEMORY)
        for key, value in self.values.items():
            storage.set_study_system_attr(study_id, key, value)
        with quietly():
            edit(OptunaStudy(study_name=_IN_MEMORY, storage=storage))
        return dict(storage.get_study_system_attrs(study_id))


def add_artifact(study: OptunaStudy, store: ArtifactStore, path: Path) -> str:
    """Copy a file into ``store`` and register it with ``study``; return the artifact's key."""
    return upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=study)


def _text(value: Any) -> str:
    return json.dumps(value)


def _optuna_ids(connection: Connection) -> dict[str, int]:
    """Return the number in Optuna's tables of each study, by its name."""
    rows = connection.execute(sa.select(Study.name, Study.optuna_study_id))
    return {row.name: row.optuna_study_id for row in rows}


def _of_study(connection: Connection, name: str) -> StudyAttributes:
    """Return a study's attributes.

    Raises:
        UnknownStudyError: There is no such study.
    """
    study = find_study(connection, name)
    rows = connection.execute(
        sa.select(_OfStudies.c.key, _OfStudies.c.value_json).where(
            _OfStudies.c.study_id == study.optuna_study_id
        )
    )
    values = {key: json.loads(text) for key, text in rows}
    return StudyAttributes(name, study.optuna_study_id, row_of(study).directions, values)


def _replace(
    connection: Connection, name: str, expected: Mapping[str, str | None], new: Mapping[str, str]
) -> bool:
    optuna_id = find_study(connection, name).optuna_study_id
    optuna_rows.lock_study(connection, optuna_id)
    of_study = _OfStudies.c.study_id == optuna_id
    these = sa.and_(of_study, _OfStudies.c.key.in_(list(expected)))
    rows = connection.execute(sa.select(_OfStudies.c.key, _OfStudies.c.value_json).where(these))
    stored = {key: _text(json.loads(text)) for key, text in rows}
    if any(stored.get(key) != text for key, text in expected.items()):
        return False
    connection.execute(sa.delete(_OfStudies).where(these))
    if new:
        connection.execute(
            sa.insert(_OfStudies),
            [{"study_id": optuna_id, "key": key, "value_json": text} for key, text in new.items()],
        )
    return True


def _differences(
    connection: Connection,
    name: str,
    names: Collection[str],
    wanted: Mapping[int, Mapping[str, str]],
) -> list[tuple[int, str, str | None]]:
    """Return the changes to make: Optuna's trial id, the attribute, and its text or None."""
    study = find_study(connection, name)
    numbers: dict[int, int] = {
        row.optuna_trial_id: row.number
        for row in connection.execute(
            sa.select(Trial.optuna_trial_id, Trial.number).where(Trial.study_id == study.id)
        )
    }
    ids = sa.select(Trial.optuna_trial_id).where(Trial.study_id == study.id)
    rows = connection.execute(
        sa.select(_OfTrials.c.trial_id, _OfTrials.c.key, _OfTrials.c.value_json).where(
            _OfTrials.c.trial_id.in_(ids), _OfTrials.c.key.in_(list(names))
        )
    )
    stored = {(trial_id, key): text for trial_id, key, text in rows}
    return [
        (optuna_id, key, wanted[number].get(key))
        for optuna_id, number in numbers.items()
        if number in wanted
        for key in names
        if stored.get((optuna_id, key)) != wanted[number].get(key)
    ]


def _set_on_trials(
    connection: Connection,
    name: str,
    names: Collection[str],
    wanted: Mapping[int, Mapping[str, str]],
) -> int:
    optuna_rows.lock_study(connection, find_study(connection, name).optuna_study_id)
    changes = _differences(connection, name, names, wanted)
    for optuna_id, key, _ in changes:
        connection.execute(
            sa.delete(_OfTrials).where(_OfTrials.c.trial_id == optuna_id, _OfTrials.c.key == key)
        )
    rows = [
        {"trial_id": optuna_id, "key": key, "value_json": text}
        for optuna_id, key, text in changes
        if text is not None
    ]
    if rows:
        connection.execute(sa.insert(_OfTrials), rows)
    return len(changes)


class Annotations(Statements):
    """Reader and writer of these attributes. Every method is one transaction; see `Repository` for errors."""

    optuna_ids = reading(_optuna_ids)
    of_study = reading(_of_study)

    def replace(self, before: StudyAttributes, values: Attributes) -> bool:
        """Replace a study's attributes by ``values``, if the changed ones still equal ``before``.

        Returns:
            Whether they were written; False if another program has changed one of them.

        Raises:
            UnknownStudyError: There is no such study any more.
        """
        changed = {
            key: (before.values.get(key), values.get(key))
            for key in {*before.values, *values}
            if key not in before.values
            or key not in values
            or _text(before.values[key]) != _text(values[key])
        }
        if not changed:
            return True
        gone = frozenset(changed) - frozenset(values)
        expected = {
            key: _text(was) if key in before.values else None for key, (was, _) in changed.items()
        }
        new = {key: _text(value) for key, (_, value) in changed.items() if key not in gone}
        try:
            return self.database.write(lambda c: _replace(c, before.study, expected, new))
        except IntegrityError:
            # One of Optuna's tools, which takes no lock for it, has added the same one.
            return False

    def set_on_trials(
        self, study: str, names: Collection[str], by_number: Mapping[int, Attributes]
    ) -> int:
        """Set the trials' user attributes of these ``names``; do not change others.

        Args:
            study: The study's name.
            names: The attributes that may be set or deleted.
            by_number: The attributes of each trial; other trials are not changed.

        Returns:
            The number of changes. Without changes nothing is locked.

        Raises:
            UnknownStudyError: There is no such study.
        """
        wanted = {
            number: {name: _text(value) for name, value in values.items() if name in names}
            for number, values in by_number.items()
        }
        if not self.database.read(lambda c: _differences(c, study, names, wanted)):
            return 0
        return self.database.write(lambda c: _set_on_trials(c, study, names, wanted))
