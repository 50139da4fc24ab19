"""A study's record, and what differs between two: the stored one, and the one that is given.

The stored definition is the one that the finished trials were run under. It is compared key by key,
and the code part by part, so that a change is reported as what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.declared.searching import Direction
from sweeper.definition import POLICY, definition_fingerprint
from sweeper.errors import DefinitionError
from sweeper.records.code import CodeFingerprint
from sweeper.storage.tables import AnyRow

_MAY_DIFFER = ("target", *POLICY)
_COMPARED_FIELDS = ("objective", "direction", "window", "seed")


@dataclass(frozen=True, slots=True)
class StudyRow:
    """Stored definition of a study.

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
        code: What the factories reach, compared part by part; None in a study that was stored
            before there was such a thing, until it is opened again.
        identity: 32 random characters that the database gave the study when it was created; empty
            in a row that is given.
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

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the definition and its code, on which a trial's result depends."""
        return definition_fingerprint(plain_json(self.definition), self.code)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Return the direction of every objective, in order; the definition alone has those after the first."""
        further = self.definition.get("further_objectives", ())
        return (self.direction, *(direction for _name, direction in further))


def row_of(study: AnyRow) -> StudyRow:
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
        code=None if study.code is None else CodeFingerprint.from_json(json.loads(study.code)),
        identity=study.identity,
    )


def changes_between(stored: StudyRow, given: StudyRow) -> list[str]:
    """Return the differences, one phrase each; ``window`` and the like only if the definition is the same."""
    changes = list(_differences("", stored.definition, plain_json(given.definition)))
    if stored.code is not None and given.code is not None:
        changes += given.code.changes_since(stored.code)
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
        elif json_text(before) != json_text(after):
            yield _change(f"{prefix}{key}", before, after)


def _change(key: str, before: object, after: object) -> str:
    was = "absent" if before is _MISSING else repr(before)
    now = "absent" if after is _MISSING else repr(after)
    return f"{key} was {was} and is now {now}"


def json_text(value: object) -> str:
    """Return JSON that tells 1 from True and 1.0; an absent value is no JSON at all."""
    if value is _MISSING:
        return ""
    try:
        return json.dumps(value)
    except TypeError as error:
        msg = f"a study's definition must be plain JSON: {error}"
        raise DefinitionError(msg) from error


def plain_json(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a database keeps of ``value``: lists for tuples, and the like."""
    plain: Mapping[str, Any] = json.loads(json_text(dict(value)))
    return plain
