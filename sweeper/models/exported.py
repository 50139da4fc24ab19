"""An exported model: checks before it is loaded or written, its card, and the result of an export."""

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
    for each in (path, *card_paths(path)):
        if each.exists() or each.is_symlink():
            msg = f"{each} already exists; name another path, or replace it (--force, force=True)"
            raise UsageError(msg)


_ORDER = (
    *("study", "trial", "state", "at", "step", "epoch", "format"),
    *("objective", "direction", "value", "parameters", "metrics", "seed"),
    *("digest", "model_digest", "definition", "code", "versions", "data", "details", "verified"),
)


def card_paths(path: Path) -> tuple[Path, Path]:
    """Return the paths of the card of the model at ``path``, as JSON and as Markdown."""
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.md")


def card_json(card: Mapping[str, Any]) -> str:
    """Return the card as JSON."""
    ordered = {name: card[name] for name in _ORDER if name in card}
    return json.dumps({**ordered, **card}, indent=2, ensure_ascii=False) + "\n"


def card_markdown(card: Mapping[str, Any], name: str) -> str:
    """Return the card as Markdown.

    Args:
        card: Content of the card.
        name: Name of the file or directory.
    """
    lines = [
        f"# {name}",
        "",
        f"The model of trial {card['trial']} of the study `{card['study']}`, {_moment(card)}.",
        "",
    ]
    for title in ("parameters", "metrics", "details", "verified", "data", "versions"):
        values = card.get(title)
        if values:
            lines += [f"## {title.capitalize()}", "", *_rows(values), ""]
    rest = {
        n: card[n]
        for n in (*_ORDER[6:10], "seed", "digest", "model_digest", "definition", "code")
        if card.get(n) is not None
    }
    lines += ["## Where it comes from", "", *_rows(rest), ""]
    return "\n".join(lines)


def _moment(card: Mapping[str, Any]) -> str:
    moments = {"end": "as training left it", "best": "of its best kept epoch"}
    where = moments.get(str(card["at"]), "of one of its checkpoints")
    return f"{where} (step {card['step']}, {card['epoch']} epochs finished)"


def _rows(values: Mapping[str, Any]) -> list[str]:
    return [f"- {name}: {_shown(value)}" for name, value in values.items()]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"`{name}` {_shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)


@dataclass(frozen=True)
class Exported:
    """An exported model and the result of its check.

    Attributes:
        path: Its file or directory.
        card: Content of its card: origin of the model, content of the export, and largest difference
            in predictions.

    Examples:
        >>> exported = study.results().best.export("best.weights.h5", "weights", force=True)
        >>> exported.card["trial"] == study.results().best.number
        True
    """

    path: str
    card: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "cards": [str(each) for each in card_paths(Path(self.path))],
            **self.card,
        }
