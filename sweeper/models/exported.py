"""An exported model: checks before it is loaded or written, its description, and the result of an export."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.checkpoint.identity import Origin
from sweeper.errors import DefinitionChangedError, UsageError
from sweeper.records.code import CodeFingerprint, short_code


def check_code(
    study: str,
    number: int,
    *,
    fingerprint: str,
    stored: CodeFingerprint | None,
    now: CodeFingerprint | None,
    origin: Origin | None,
    accept: bool,
    notice: Callable[[str], None],
) -> None:
    """Refuse, or report, that a trial's model would be built with changed code.

    Args:
        study: Name of the study.
        number: Number of the trial.
        fingerprint: Fingerprint of the study's stored definition and code.
        stored: The stored code; None from an older version.
        now: The current code; None if it was not read.
        origin: Origin of the checkpoint, with the definition under which it was written.
        accept: Whether to continue and report the changes.
        notice: Called with the report.

    Raises:
        DefinitionChangedError: The code has changed, without ``accept``.
    """
    changes = []
    if origin is not None and origin.definition and origin.definition != fingerprint:
        changes.append(
            f"it ran under a definition with the fingerprint {short_code(origin.definition)}, and "
            f"the study's is {short_code(fingerprint)} since"
        )
    if stored is not None and now is not None:
        changes += now.changes_since(stored)
    if not changes:
        return
    shown = "; ".join(changes)
    if accept:
        notice(f"trial {number} of study {study!r}: {shown}; continued because of --accept-changes")
        return
    msg = (
        f"the model of trial {number} of study {study!r} cannot be built as it was: {shown}. "
        "Restore the code, or accept the change (--accept-changes, accept_changes=True); every "
        "variable must still fit"
    )
    raise DefinitionChangedError(msg)


def check_target(path: Path, *, force: bool) -> None:
    """Check that ``path`` can be written.

    Args:
        path: The file or directory to write.
        force: Whether an existing file may be replaced.

    Raises:
        UsageError: It exists already, or its directory does not exist.
    """
    parent = path.parent
    if not parent.is_dir():
        what = "is no directory" if parent.exists() else "does not exist"
        msg = f"{parent}, where {path.name} is to be written, {what}; make it first"
        raise UsageError(msg)
    if force:
        return
    for each in (path, description_path(path)):
        if each.exists() or each.is_symlink():
            msg = f"{each} already exists; name another path, or replace it (--force, force=True)"
            raise UsageError(msg)


def description_path(path: Path) -> Path:
    """Return the path of the description of the model at ``path``."""
    return path.with_name(f"{path.name}.json")


def description_json(card: Mapping[str, Any]) -> str:
    """Return a description as the text of its file."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        path: Its file or directory.
        card: Content of its description: origin of the model, and content of the export.

    Examples:
        >>> exported = study.results().best.export("best.weights.h5", "weights", force=True)
        >>> exported.card["trial"] == study.results().best.number
        True
    """

    path: str
    card: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        description = str(description_path(Path(self.path)))
        return {"path": self.path, "description": description, **self.card}
