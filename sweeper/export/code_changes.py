"""Check whether a study's code is still the code of a trial, and the message where it is not."""

from __future__ import annotations

from collections.abc import Callable

from sweeper.checkpoints.origin import Origin
from sweeper.errors import DefinitionChangedError
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
        notice(f"trial {number} of study {study!r}: {shown}; going on all the same, as asked")
        return
    msg = (
        f"the model of trial {number} of study {study!r} cannot be built as it was: {shown}. "
        "Restore what was there, or accept the change (--accept-changes, accept_changes=True): "
        "every variable must fit all the same"
    )
    raise DefinitionChangedError(msg)
