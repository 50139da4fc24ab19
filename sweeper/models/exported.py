"""An exported model: formats, checks before it is loaded or written, description, result. No TensorFlow is needed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.checkpoint.identity import Origin
from sweeper.errors import DefinitionChangedError, UsageError
from sweeper.records.code import CodeFingerprint, short_code

SUFFIXES = {
    "keras": ".keras",
    "weights": ".weights.h5",
    "savedmodel": "",
    "frozen": ".pb",
    "tf-checkpoint": "",
    "safetensors": ".safetensors",
}
"""Suffix of each format's path, by the format's name; empty for a directory."""


def check_format(name: str, path: str) -> None:
    if name not in SUFFIXES:
        raise UsageError(f"{name!r} is not an export format; use one of {', '.join(SUFFIXES)}")
    suffix = SUFFIXES[name]
    if suffix and (not path.endswith(suffix) or path == suffix):
        raise UsageError(
            f"--format {name} writes a file that ends with {suffix}; the path is {path}"
        )


def check_code(
    study: str,
    number: int,
    *,
    fingerprint: str,
    stored: CodeFingerprint | None,
    current: CodeFingerprint | None,
    origin: Origin | None,
    accept: bool,
    notify: Callable[[str], None],
) -> None:
    """Refuse, or with ``accept`` report, that a trial's model would be built with changed code.

    ``fingerprint`` and ``stored`` are those of the study's stored definition and code, ``current`` is the
    current code (None if it was not read), and ``origin`` has the definition of the checkpoint.
    """
    changes = []
    if origin is not None and origin.definition and origin.definition != fingerprint:
        changes.append(
            f"it ran under a definition with the fingerprint {short_code(origin.definition)}, and "
            f"the study's is {short_code(fingerprint)} since"
        )
    if stored is not None and current is not None:
        changes += current.changes_since(stored)
    if not changes:
        return
    summary = "; ".join(changes)
    if accept:
        notify(
            f"trial {number} of study {study!r}: {summary}; continued because of --accept-changes"
        )
        return
    raise DefinitionChangedError(
        f"the model of trial {number} of study {study!r} cannot be built as it was: {summary}. "
        "Restore the code, or accept the change (--accept-changes, accept_changes=True); every "
        "variable must still fit"
    )


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a path whose directory does not exist, and without ``force`` one that exists."""
    parent = path.parent
    if not parent.is_dir():
        problem = "is no directory" if parent.exists() else "does not exist"
        raise UsageError(f"{parent}, where {path.name} is to be written, {problem}; make it first")
    if force:
        return
    for target in (path, description_path(path)):
        if target.exists() or target.is_symlink():
            raise UsageError(
                f"{target} already exists; name another path, or replace it (--force, force=True)"
            )


def description_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


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
