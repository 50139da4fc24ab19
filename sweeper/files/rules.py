"""Rules for the files of several trials: what makes a trial depend on another one, and what only may.

A file that was there before the study is the user's. A trial that reads what another trial wrote is not
independent if its own content would have been different. A run knows that only of a file that the trial then
overwrote; `sweeper check` knows it, because it runs each of two trials without the other's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeper.files.uses import FileUse

CURE = "write it below `trial.directory`, which each trial has for itself"


@dataclass(frozen=True)
class TrialUses:
    """Uses of files by one attempt at another trial.

    Attributes:
        who: The trial for messages, such as "trial 3".
        uses: Its uses.
        ended: Whether the attempt has ended, so that digests of what it wrote are known.
        same: Whether it is an earlier attempt at the trial that is judged, whose files are its own.
    """

    who: str
    uses: tuple[FileUse, ...]
    ended: bool = True
    same: bool = False


@dataclass(frozen=True)
class FileFinding:
    """One finding about a file.

    Attributes:
        level: "error": a trial's result depends on another trial. "warning": it may. "note": trials
            overwrite each other's file, or an input has changed.
        path: Absolute path of the file.
        message: What was seen, and what to do next.
    """

    level: Literal["error", "warning", "note"]
    path: str
    message: str


def in_a_run(
    trial: TrialUses, others: Sequence[TrialUses], *, check: str = "sweeper check FILE"
) -> Iterator[FileFinding]:
    """Yield the findings about one trial of a run, given the uses of other trials.

    Args:
        trial: The trial.
        others: Attempts at other trials, of this study or earlier ones in the same database, and
            earlier attempts at the trial.
        check: Command that decides what a run cannot.
    """
    for use in trial.uses:
        writer = _writer(use, others)
        if writer is None:
            if use.read and not use.wrote:
                yield from _changed_input(use, others)
            continue
        who, written = writer
        if use.depends and use.existed:
            same = bool(use.read_digest) and use.read_digest == use.digest
            if use.read and use.wrote and use.digest and use.read_digest and not same:
                yield FileFinding(
                    "error",
                    use.path,
                    f"{trial.who} is not independent: {_at(use.read_at)}reads {use.name}, which "
                    f"{who} wrote{_by(written.wrote_at)}, and writes other content to it"
                    f"{_by(use.wrote_at)}; {CURE}, or make the file before the study begins",
                )
            elif same or not use.wrote:
                yield FileFinding(
                    "warning",
                    use.path,
                    f"{trial.who} {'reads' if use.read else 'looks for'} {use.name}"
                    f"{_by(use.read_at)}, which {who} wrote{_by(written.wrote_at)}; its result does "
                    f"not depend on {who} only if it would have written the same: `{check}` tells",
                )
        elif use.wrote and trial.ended and _both_known_other(use, written):
            yield _overwritten(use, who, trial.who)


def in_a_check(first: TrialUses, second: TrialUses) -> Iterator[FileFinding]:
    """Yield the findings about two trials, of which neither was offered the other's files.

    Args:
        first: The trial that ran first.
        second: The trial that ran after the files that the first created had been set aside.
    """
    by_path = {use.path: use for use in second.uses}
    for use in first.uses:
        other = by_path.get(use.path)
        if not use.wrote or use.existed:
            continue
        if other is None or not other.wrote:
            if other is not None and other.asked:
                yield _dependent(use, other, first.who, second.who, "would have had none")
            continue
        if not _both_known_other(use, other):
            continue
        if use.asked or other.asked:
            looked = other if other.asked else use
            yield _dependent(use, looked, first.who, second.who, "would have written other content")
        else:
            yield _overwritten(use, first.who, second.who)


def _overwritten(use: FileUse, first: str, second: str) -> FileFinding:
    return FileFinding(
        "note",
        use.path,
        f"{first} and {second} both write {use.name}{_by(use.wrote_at)}, and what is left is one trial's "
        f"alone; {CURE}",
    )


def _dependent(use: FileUse, reader: FileUse, first: str, second: str, would: str) -> FileFinding:
    return FileFinding(
        "error",
        use.path,
        f"{_at(reader.read_at)}reads {use.name}, which {first} wrote{_by(use.wrote_at)}; {second} "
        f"{would}: {CURE}, or make the file before the study begins",
    )


def _writer(use: FileUse, others: Sequence[TrialUses]) -> tuple[str, FileUse] | None:
    """Return the latest other trial that wrote the file, with its use; a writer of the same content last."""
    found = None
    for other in others:
        for theirs in () if other.same else other.uses:
            if theirs.path == use.path and theirs.wrote:
                found = other.who, theirs
    return found


def _changed_input(use: FileUse, others: Sequence[TrialUses]) -> Iterator[FileFinding]:
    """Yield a note if an input of the user's has other content than when another trial read it."""
    for other in reversed(others):
        for theirs in other.uses:
            if theirs.path != use.path or not theirs.read or theirs.wrote:
                continue
            same_state = (theirs.size, theirs.modified) == (use.size, use.modified)
            if same_state or (theirs.read_digest and theirs.read_digest == use.read_digest):
                return
            if theirs.size == use.size and not (theirs.read_digest and use.read_digest):
                return  # written again with the same length; whether it differs is unknown
            yield FileFinding(
                "note",
                use.path,
                f"{use.name} changed since {other.who} ran{_by(use.read_at)}: what was trained before "
                "and after the change is ranked together, but has not read the same data",
            )
            return


def _both_known_other(ours: FileUse, theirs: FileUse) -> bool:
    return bool(ours.digest and theirs.digest) and ours.digest != theirs.digest


def _at(line: str) -> str:
    return f"{line} " if line else "it "


def _by(line: str) -> str:
    return f" ({line})" if line else ""
