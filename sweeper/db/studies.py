"""Rows of studies: creation, comparison when opened again, lookup by name.

The stored definition is that of the finished trials. A changed definition would mix two experiments
in one set of results, so it is refused. Definitions are compared key by key, and code part by part,
so that every change is named.
"""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.observations import declare_observations
from sweeper.db.rungs import change_total, check_same_rungs
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    DefinitionChange,
    Study,
    Trial,
    UtcNow,
    change,
    count,
    record_of,
)
from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import Direction, Objective, check_whole_configurations
from sweeper.definition.definition import POLICY, SEARCH, definition_fingerprint
from sweeper.errors import DefinitionChangedError, DefinitionError, StorageError, UnknownStudyError
from sweeper.records.code import CodeFingerprint
from sweeper.search.spaces import grid_point
from sweeper.support.installation import VERSION

_MAY_DIFFER = ("target", *POLICY)
_COMPARED_FIELDS = ("objective", "direction", "window", "seed")


@dataclass(frozen=True, slots=True)
class StudyRow:
    """Stored definition of a study.

    Attributes:
        name: Unique in the database.
        definition: Plain JSON, compared key by key when the study is opened again.
        objective: The metric of Optuna's values.
        target: The exact total of trials.
        window: Trial n starts only when all trials up to n - window are finished and fewer than the
            definition's ``concurrency`` run. None if the sampler does not use results.
        seed: The study's seed, from 0 to 2**63 - 1.
        source: Origin of the definition as plain JSON, for a resume by name. It is not compared;
            the latest one is kept.
        code: Code that the factories reach, compared part by part; None in a study of an old
            version until it is opened again.
        identity: 32 random characters, set when the study is created; empty in a row to be stored.
        changes: Number of its changes so far, in a row that `create_or_open` returns.
    """

    name: str
    definition: Mapping[str, Any]
    objective: str
    direction: Direction
    target: int
    window: int | None
    seed: int
    source: Mapping[str, Any] | None = None
    code: CodeFingerprint | None = None
    identity: str = field(default="", compare=False, repr=False)
    changes: int | None = field(default=None, compare=False, repr=False)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the definition and its code, on which a trial's result depends."""
        return definition_fingerprint(plain_json(self.definition), self.code)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return objectives_of(self)

    def changes_since(self, earlier: StudyRow, *, of_search: bool | None = None) -> list[str]:
        """Return the differences from an ``earlier`` row, one phrase each; of columns only if the definitions are equal.

        With ``of_search``, only those of the settings and code of the search.
        """
        old_definition = dict(earlier.definition)
        new_definition = dict(plain_json(self.definition))
        if of_search:
            old_definition, new_definition = (
                {n: v for n, v in definition.items() if n in SEARCH}
                for definition in (old_definition, new_definition)
            )
        changes = list(_differences("", old_definition, new_definition))
        if earlier.code is not None and self.code is not None:
            changes += self.code.changes_since(earlier.code, of_search=of_search)
        if changes or of_search:
            return changes
        return [
            _change(field, getattr(earlier, field), getattr(self, field))
            for field in _COMPARED_FIELDS
            if getattr(earlier, field) != getattr(self, field)
        ]


def objectives_of(study: AnyRow | StudyRow) -> tuple[Objective, ...]:
    """Return the objectives of a study's row or record, in order."""
    further = study.definition.get("further_objectives", ())
    return (
        Objective(study.objective, study.direction),
        *(Objective(**objective) for objective in further),
    )


def row_of(study: AnyRow) -> StudyRow:
    code = None if study.code is None else CodeFingerprint.from_json(json.loads(study.code))
    return record_of(StudyRow, study, code=code)


_MISSING = object()


def _differences(prefix: str, old: Any, new: Any) -> Iterator[str]:
    """Yield one phrase for each key whose values differ, except for totals and policy."""
    for key in [*old, *(key for key in new if key not in old)]:
        if not prefix and key in _MAY_DIFFER:
            continue
        old_value = old.get(key, _MISSING)
        new_value = new.get(key, _MISSING)
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            yield from _differences(f"{prefix}{key}.", old_value, new_value)
        elif json_text(old_value) != json_text(new_value):
            yield _change(f"{prefix}{key}", old_value, new_value)


def _change(key: str, old: object, new: object) -> str:
    if key == "observe":
        counts = [0 if value is _MISSING else len(cast("list[Any]", value)) for value in (old, new)]
        return f"observe had {counts[0]} observations and now has {counts[1]}"
    old_text = "absent" if old is _MISSING else repr(old)
    new_text = "absent" if new is _MISSING else repr(new)
    return f"{key} was {old_text} and is now {new_text}"


def json_text(value: object) -> str:
    """Return the value as JSON, which distinguishes 1, True and 1.0; an absent value is empty."""
    if value is _MISSING:
        return ""
    try:
        return json.dumps(value)
    except TypeError as error:
        raise DefinitionError(f"a study's definition must be plain JSON: {error}") from error


def plain_json(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``value`` as it is after a round trip through JSON, with lists for tuples."""
    plain: Mapping[str, Any] = json.loads(json_text(dict(value)))
    return plain


_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AcceptedChange:
    """A change of a study's definition that was accepted.

    Attributes:
        begun: Number of trials that had begun before.
        changes: The changes, one phrase each.
        replaced: Fingerprint of the former definition.
    """

    begun: int
    changes: tuple[str, ...]
    replaced: str | None = field(default=None, compare=False)


def create_or_open(connection: Connection, row: StudyRow) -> StudyRow:
    """Insert the study, or check it against the stored one; return the stored study."""
    # Optuna's names are read first. Both parts of a study are committed at once, so a new study of
    # another process that is seen here is also seen below, and not taken for Optuna's alone.
    taken = row.name in optuna_rows.study_names(connection)
    study = connection.execute(sa.select(Study).where(Study.name == row.name)).first()
    if study is not None:
        stored_row = row_of(study)
        _check_unchanged(stored_row, row)
        changed: dict[str, Any] = {}
        if row.source is not None and plain_json(row.source) != stored_row.source:
            changed["source"] = plain_json(row.source)
        if row.code is not None and (row.source is not None or stored_row.code is None):
            # The same code at other lines, or the first known code of a study of an older version.
            text = row.code.to_text()
            if text != study.code or study.fingerprint is None:
                changed |= {"code": text, "fingerprint": row.fingerprint}
        if changed:
            change(connection, Study, study.id, **changed)
            study = find_study(connection, row.name)
        changes = number_of_changes(connection, study.id)
        return replace(row_of(study), changes=changes)
    if not 0 <= row.seed <= _LARGEST_SEED:
        raise DefinitionError(f"seed={row.seed}; expected a whole number from 0 to 2**63 - 1")
    if row.target < 1:
        raise DefinitionError(f"trials={row.target}; expected 1 or more")
    if taken:
        raise DefinitionError(
            f"the database holds a study {row.name!r} that Optuna made without sweeper; "
            "give this study another name, or use another database (--storage)"
        )
    optuna_study_id = optuna_rows.create_study(connection, row.name, row.objectives)
    connection.execute(
        sa.insert(Study).values(
            **_columns(row),
            name=row.name,
            optuna_study_id=optuna_study_id,
            direction=row.direction,
            target=row.target,
            source=row.source and plain_json(row.source),
            created_at=UtcNow(),
            sweeper_version=VERSION,
            identity=uuid.uuid4().hex,
        )
    )
    study = find_study(connection, row.name)
    declare_observations(connection, study, _declared(row), 0)
    return replace(row_of(study), changes=0)


def _declared(row: StudyRow) -> list[ForeignObservation]:
    given = plain_json(row.definition).get("observe", ())
    return [ForeignObservation(o["params"], tuple(o["values"])) for o in given]


def _columns(row: StudyRow) -> dict[str, Any]:
    """Return the columns of a definition that may change; unknown code leaves the stored one."""
    code = {} if row.code is None else {"code": row.code.to_text()}
    return {
        **code,
        "definition": plain_json(row.definition),
        "objective": row.objective,
        "window": row.window,
        "seed": row.seed,
        "fingerprint": row.fingerprint,
    }


def accept_search(connection: Connection, row: StudyRow) -> tuple[str, ...]:
    """Store changed settings of the search, which no trial's result depends on; return the changes."""
    study = lock_study(connection, row.name)
    old = row_of(study)
    changes = row.changes_since(old)
    if changes != row.changes_since(old, of_search=True):
        _check_unchanged(old, row)
    old_grid, new_grid = (study_row.definition.get("grid") or {} for study_row in (old, row))
    configurations = _begun_configurations(connection, study) if old_grid and new_grid else 0
    for number in range(configurations):
        same_names = list(old_grid) == list(new_grid)
        if not same_names or grid_point(old_grid, number) != grid_point(new_grid, number):
            raise DefinitionChangedError(
                f"the grid of study {row.name!r} has changed, and its point {number}, which has been "
                "trained, would be another one. Points are in row-major order, so add further points "
                f"at the end of the first parameter ({next(iter(old_grid))!r}), or give the study "
                "another name"
            )
    return _replace_definition(connection, study, row) if changes else ()


def next_drawn(connection: Connection, study: AnyRow) -> int:
    """Return the number of the first trial whose parameters no trial has begun to draw."""
    repeats: int = study.definition.get("repeats", 1)
    return repeats * _begun_configurations(connection, study)


def _begun_configurations(connection: Connection, study: AnyRow) -> int:
    last = connection.scalar(sa.select(sa.func.max(Trial.number)).where(Trial.study_id == study.id))
    return 0 if last is None else Repeating.of(study.definition).index_of(last) + 1


def find_study(connection: Connection, name: str, *, lock: bool = False) -> AnyRow:
    """Return the columns of the named study; the error for a missing one lists similar names, or all names."""
    named = sa.select(Study).where(Study.name == name)
    study = connection.execute(named.with_for_update() if lock else named).first()
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
    raise UnknownStudyError(f"the database has no study {name!r}; {hint}")


def read_study(connection: Connection, name: str) -> StudyRow:
    """Return the stored study; see `find_study` for the error."""
    return row_of(find_study(connection, name))


def lock_study(connection: Connection, name: str) -> AnyRow:
    """Return the named study's columns, and block other claims in it until this transaction ends."""
    study = find_study(connection, name, lock=True)
    if not optuna_rows.lock_study(connection, study.optuna_study_id):
        raise StorageError(
            f"study {name!r} was deleted by one of Optuna's tools, and only sweeper's rows are "
            "left; run it under another name"
        )
    return study


def optuna_ids(connection: Connection) -> dict[str, int]:
    """Return the number in Optuna's tables, and in optuna-dashboard's addresses, of each study."""
    rows = connection.execute(sa.select(Study.name, Study.optuna_study_id))
    return {row.name: row.optuna_study_id for row in rows}


def study_names(connection: Connection) -> tuple[str, ...]:
    """Return the names of all studies, the oldest first."""
    return tuple(connection.scalars(sa.select(Study.name).order_by(Study.id)))


def trial_numbers(connection: Connection, name: str) -> tuple[int, ...]:
    """Return the numbers of a study's trials that have begun; none if there is no such study."""
    query = sa.select(Trial.number).join(Study, Study.id == Trial.study_id)
    return tuple(connection.scalars(query.where(Study.name == name).order_by(Trial.number)))


def set_target(connection: Connection, name: str, target: int) -> StudyRow:
    """Change the exact total of trials; return the changed study."""
    study = lock_study(connection, name)
    trial_count = count(connection, Trial.study_id == study.id)
    repeating = Repeating.of(study.definition)
    if repeating.repeats > 1 and not repeating.confirmed:
        check_whole_configurations(target, repeating.repeats)
        trial_count = repeating.repeats * _begun_configurations(connection, study)
    if target < max(trial_count, 1):
        raise DefinitionError(
            f"trials={target}, but {trial_count} trials of study {name!r} have begun; raise the total, "
            f"or lower it to at least {max(trial_count, 1)}"
        )
    change_total(connection, study, target, trial_count)
    change(connection, Study, study.id, target=target)
    return row_of(find_study(connection, name))


def accept_definition(
    connection: Connection, row: StudyRow, *, search_alone: bool = False
) -> tuple[str, ...]:
    """Replace the stored definition by that of ``row``; record and return the changes.

    If only the search has changed, nothing is done unless ``search_alone``: `create_or_open` stores it.
    """
    study = lock_study(connection, row.name)
    old = row_of(study)
    changes = tuple(row.changes_since(old))
    if not changes:
        return ()
    if not search_alone and list(changes) == row.changes_since(old, of_search=True):
        return ()
    old_directions, new_directions = (
        " and ".join(objective.direction for objective in study_row.objectives)
        for study_row in (old, row)
    )
    if old_directions != new_directions:
        raise DefinitionError(
            f"study {row.name!r} was created to {old_directions}, and its definition now says {new_directions}; its "
            "finished trials would be ranked in the opposite order: give it another name"
        )
    check_same_rungs(connection, study, plain_json(row.definition))
    old_repeats, new_repeats = (study_row.definition.get("repeats", 1) for study_row in (old, row))
    if old_repeats != new_repeats and count(connection, Trial.study_id == study.id):
        raise DefinitionError(
            f"study {row.name!r} has {old_repeats} repeats, and its definition now says {new_repeats}: the trials that "
            "have begun would belong to other configurations. Give it another name, or train its "
            f"leading configurations again with `sweeper confirm {row.name}`"
        )
    return _replace_definition(connection, study, row)


def _replace_definition(connection: Connection, study: AnyRow, row: StudyRow) -> tuple[str, ...]:
    old = row_of(study)
    changes = tuple(row.changes_since(old))
    change(connection, Study, study.id, **_columns(row))
    declare_observations(connection, study, _declared(row), next_drawn(connection, study))
    connection.execute(
        sa.insert(DefinitionChange).values(
            study_id=study.id,
            changed_at=UtcNow(),
            begun=count(connection, Trial.study_id == study.id),
            changes=list(changes),
            replaced=old.fingerprint,
        )
    )
    return changes


def changes_of(connection: Connection, study_id: int) -> tuple[AcceptedChange, ...]:
    """Return the accepted changes of the definition, oldest first."""
    query = sa.select(DefinitionChange).where(DefinitionChange.study_id == study_id)
    rows = connection.execute(query.order_by(DefinitionChange.id))
    return tuple(AcceptedChange(row.begun, tuple(row.changes), row.replaced) for row in rows)


def definition_changes(connection: Connection, name: str) -> tuple[AcceptedChange, ...]:
    """Return the accepted changes of a study's definition, oldest first."""
    return changes_of(connection, find_study(connection, name).id)


def number_of_changes(connection: Connection, study_id: int) -> int:
    return count(connection, DefinitionChange.study_id == study_id)


def has_begun(connection: Connection, name: str) -> bool:
    return count(connection, Trial.study_id == find_study(connection, name).id) > 0


def trials_of(study_id: int) -> sa.Select[int]:
    return sa.select(Trial.id).where(Trial.study_id == study_id)


def is_open() -> sa.Exists:
    """Return the condition that the trial of the enclosing query has an open attempt."""
    return (
        sa.exists()
        .where(Attempt.trial_id == Trial.id, Attempt.outcome.is_(None))
        .correlate(Trial.__table__)
    )


def begun_trials(connection: Connection, study_id: int) -> Sequence[AnyRow]:
    """Return the columns of the study's trials that have begun, by number, and whether each is ``running``."""
    query = sa.select(Trial, is_open().label("running")).where(Trial.study_id == study_id)
    return connection.execute(query.order_by(Trial.number)).all()


def find_trial(connection: Connection, study: AnyRow, number: int, *, lock: bool = False) -> AnyRow:
    """Return the columns of a trial and whether it is ``running``, and with ``lock`` lock its row."""
    query = sa.select(Trial, is_open().label("running")).where(
        Trial.study_id == study.id, Trial.number == number
    )
    trial = connection.execute(query.with_for_update() if lock else query).first()
    if trial is None:
        raise no_such_trial(connection, study, number)
    return trial


def no_such_trial(connection: Connection, study: AnyRow, number: int) -> UnknownStudyError:
    """Return the error to raise for a missing trial; it lists the existing ones."""
    numbers = set(connection.scalars(sa.select(Trial.number).where(Trial.study_id == study.id)))
    first_missing = next(n for n in range(len(numbers) + 1) if n not in numbers)
    hint = "none has begun"
    if first_missing:
        hint = f"it has trial{'s 0 to' * (first_missing > 1)} {first_missing - 1}"
    others = sorted(n for n in numbers if n > first_missing)
    hint += f" and {', '.join(map(str, others))}" if others else ""
    return UnknownStudyError(
        f"study {study.name!r} has no trial {number}; {hint} (of {study.target}), which "
        f"`sweeper status {study.name}` lists"
    )


def _check_unchanged(old: StudyRow, new: StudyRow) -> None:
    changes = new.changes_since(old)
    if changes:
        source = new.source or {}
        fresh = "study.run(fresh=True)"
        accept = "study.run(accept_changes=True)"
        extend = "call study.extend({})"
        # A study that runs itself may be made inside a function, where no command finds it.
        if (file := source.get("location")) and source.get("how") == "target":
            target = f"{file}:{source['name']}" if source.get("name") else file
            fresh = f"`sweeper run {target} --fresh`"
            accept = "--accept-changes"
            extend = f"type `sweeper extend {new.name} --epochs {{}}`"
        old_epochs, new_epochs = (
            int(study_row.definition.get("epochs", 0)) for study_row in (old, new)
        )
        further = ""
        if changes == [_change("epochs", old_epochs, new_epochs)] and new_epochs > old_epochs:
            further = (
                f"To train its trials from {old_epochs} epochs on to {new_epochs}, write epochs={old_epochs} again and "
                f"{extend.format(new_epochs)}. "
            )
        raise DefinitionChangedError(
            f"study {new.name!r} was defined differently when it was created: "
            f"{'; '.join(changes)}. {further}Its finished trials belong to the old definition: restore it, "
            f"start over under the same name with {fresh}, which keeps them as {new.name}~1, or "
            f"accept the change with {accept}, which ranks them apart"
        )
