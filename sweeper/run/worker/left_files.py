"""Files that a trial has left where a later one could read them, and the notice of a run about them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.files.uses import FileUse, TrialUses
from sweeper.files.walk import MOST_ENTRIES
from sweeper.records.findings import Finding

_SHOWN = 3
"""Maximum number of names in a message."""


def without_own_output(files: Mapping[str, Any], database: str) -> dict[str, Any]:
    """Return a trial's uses, as `uses_to_json`, in which what this process writes has not been left by the trial.

    That is its output, which a shell may write to a file, and ``database``, the path of the database if it is a file.
    """
    uses = []
    for use in files.get("uses", ()):
        by_walk = use.get("left") and not use.get("wrote")
        ours = by_walk and _is_ours(use["path"], database)
        uses.append({**use, "left": False} if ours else use)
    return {**files, "uses": uses}


def left_behind(trial: TrialUses, *, cut: bool = False) -> Iterator[Finding]:
    """Yield a note about what an ended trial left where a later one could read it.

    With ``cut``, the directories have too many entries.
    """
    if cut:
        message = (
            f"the directories of the study have more than {MOST_ENTRIES:,} entries; whether a trial left a "
            "file was looked for among the first ones"
        )
        yield Finding("note", "/", message)
    temporary = os.path.realpath(tempfile.gettempdir())
    here = os.path.realpath(Path.cwd())

    def is_found_later(use: FileUse) -> bool:
        if _below(use.path, temporary) and not _below(use.path, here):
            return False
        if use.wrote:
            return True
        # Hidden directories have the state of tools, such as an editor's, which write meanwhile.
        hidden = "/." in use.path.removeprefix(here)
        return use.left and not hidden

    uses = [use for use in trial.uses if is_found_later(use)]
    if not uses:
        return
    wrote = _listed([use.name for use in uses if use.wrote])
    changed = _listed([use.name for use in uses if use.left])
    clauses = [f"{trial.who} left {wrote}"] * bool(wrote)
    clauses += [f"{changed} appeared or changed while {trial.who} ran"] * bool(changed)
    message = f"{', and '.join(clauses)}: a later trial can read it, and `sweeper check FILE` tells whether one depends on it"
    yield Finding("note", "", message)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _below(path: str, directory: str) -> bool:
    return path.startswith(directory + os.sep)


def _is_ours(path: str, database: str) -> bool:
    """Return whether this process writes to a file: its output, the database and what SQLite puts beside it."""
    if database and path.startswith(os.path.realpath(database)):
        return True
    try:
        file = Path(path).stat()
    except OSError:
        return True  # it is gone
    for descriptor in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing is closed
            if os.path.samestat(file, os.fstat(int(descriptor.name))):
                return True
    return False
