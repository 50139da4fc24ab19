"""Checks before a model is loaded or exported: unchanged code of the trial, and a path that can be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sweeper.checkpoint.identity import Origin
from sweeper.errors import DefinitionChangedError, UsageError
from sweeper.models.card import card_paths
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
    """Refuse to build a trial's model with other code than it ran under, or say so.

    Args:
        study: The study's name.
        number: The trial's.
        fingerprint: Of the definition and code that the study is stored with now.
        stored: That code; None where an older version stored it.
        now: The code as it stands; None where it was not looked at.
        origin: Whose the checkpoint is, which says under which definition it was written.
        accept: Go on, and say what changed.
        notice: Called with that.

    Raises:
        DefinitionChangedError: Something changed, and that is not accepted.
    """
    changes = []
    if origin is not None and origin.definition and origin.definition != fingerprint:
        changes.append(
            f"it ran under a definition with the fingerprint {short_code(origin.definition)}, and "
            f"the study's is {short_code(fingerprint)} since"
        )
    if stored is not None and now is not None:
        changes += now.comparable_with(stored).changes_since(stored)
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
        path: Where a model is to go.
        force: Whether what is there may be replaced.

    Raises:
        UsageError: Something is there, or no directory to hold it.
    """
    parent = path.parent
    if not parent.is_dir():
        what = "is no directory" if parent.exists() else "does not exist"
        msg = f"{parent}, where {path.name} is to be written, {what}; make it first"
        raise UsageError(msg)
    if force:
        return
    for each in (path, *card_paths(path)):
        if each.exists() or each.is_symlink():
            msg = f"{each} already exists; name another path, or replace it (--force, force=True)"
            raise UsageError(msg)
