"""Rules for the files of several trials: what makes a trial depend on another one, and what only may.

A file that was there before the study is the user's. A trial that reads what another trial wrote is not
independent if its own content would have been different. A run knows that only of a file that the trial
overwrote, before or afterwards; `sweeper check` knows it, because it runs each of two trials without the
other's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeper.files.uses import FileUse

CURE = "write it below `trial.directory`, which each trial has for itself"
_OR_BEFORE = f"{CURE}, or make the file before the study begins"


@dataclass(frozen=True)
class TrialUses:
    """Uses of files by one attempt.

    Attributes:
        who: The trial for messages, such as "trial 3".
        uses: Its uses.
        same: Whether it is an earlier attempt at the trial that is judged, whose files are its own.
    """

    who: str
    uses: tuple[FileUse, ...]
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


def in_a_run(trial: TrialUses, others: Sequence[TrialUses]) -> Iterator[FileFinding]:
    """Yield the findings about one trial of a run.

    ``others`` are attempts at other trials, of this study or earlier ones in the same database, and earlier
    attempts at the trial, the latest last.
    """
    for use in trial.uses:
        theirs = [(each, other) for each in others for other in each.uses if other.path == use.path]
        latest = {each.who: other for each, other in theirs if not each.same}
        # What another trial reported before this one wrote is judged now.
        for name, other in latest.items() if use.wrote else ():
            if other.changed:
                yield _changed(name, other, trial.who, use)
        wrote = [(each.who, other) for each, other in theirs if other.wrote and not each.same]
        who, written = wrote[-1] if wrote else ("another process", FileUse(use.path))
        if use.changed:
            yield _changed(trial.who, use, who, written)
        elif wrote and use.asked and use.existed:
            yield from _dependent(trial.who, use, who, written)
        elif wrote and _differ(use.digest, written.digest):
            yield _overwritten(use, who, trial.who)
        elif not wrote and use.read and not use.wrote:
            yield from _changed_input(use, [(each.who, other) for each, other in theirs])


def in_a_check(first: TrialUses, second: TrialUses) -> Iterator[FileFinding]:
    """Yield the findings about two trials; the second ran after the files of the first had been set aside."""
    by_path = {use.path: use for use in second.uses}
    for use in first.uses:
        other = by_path.get(use.path, FileUse(use.path))
        same = other.wrote and not _differ(use.digest, other.digest)
        if not use.wrote or use.existed or same:
            continue
        if other.asked or (use.asked and other.wrote):
            would = "would have written other content" if other.wrote else "would have had none"
            message = (
                f"{_at((other if other.asked else use).read_at)}reads {use.name}, which {first.who} "
                f"wrote{_by(use.wrote_at)}; {second.who} {would}: {_OR_BEFORE}"
            )
            yield FileFinding("error", use.path, message)
        elif other.wrote:
            yield _overwritten(use, first.who, second.who)


def _dependent(reader: str, use: FileUse, writer: str, written: FileUse) -> Iterator[FileFinding]:
    """Yield a finding about a file that a trial found and read, or looked for, and another one wrote."""
    where = f"which {writer} wrote{_by(written.wrote_at)}"
    if _differ(use.read_digest, use.digest):
        message = (
            f"{reader} is not independent: {_at(use.read_at)}reads {use.name}, {where}, and writes other "
            f"content to it{_by(use.wrote_at)}; {_OR_BEFORE}"
        )
        yield FileFinding("error", use.path, message)
    elif (use.read_digest and use.digest) or not use.wrote:
        message = (
            f"{reader} {'reads' if use.read else 'looks for'} {use.name}{_by(use.read_at)}, {where}; its "
            f"result does not depend on {writer} only if it would have written the same: `sweeper check "
            "FILE` tells"
        )
        yield FileFinding("warning", use.path, message)


def _changed(reader: str, use: FileUse, writer: str, written: FileUse) -> FileFinding:
    message = (
        f"{reader} is not independent: {_at(use.read_at)}uses {use.name}, which {writer} "
        f"wrote{_by(written.wrote_at)} at the same time, so that it is changed, or held, since {reader} "
        f"wrote it{_by(use.wrote_at)}; in a factory, {CURE}"
    )
    return FileFinding("error" if written.wrote else "warning", use.path, message)


def _overwritten(use: FileUse, first: str, second: str) -> FileFinding:
    message = (
        f"{first} and {second} both write {use.name}{_by(use.wrote_at)}, and what is left is one "
        f"trial's alone; {CURE}"
    )
    return FileFinding("note", use.path, message)


def _changed_input(use: FileUse, theirs: Iterable[tuple[str, FileUse]]) -> Iterator[FileFinding]:
    """Yield a note if an input of the user's has other content than when another trial read it last."""
    readers = [(who, other) for who, other in theirs if other.read and not other.wrote]
    who, other = readers[-1] if readers else ("", use)
    known = bool(other.read_digest and use.read_digest)
    # A file that was written again with the same length may be the same.
    if other.read_digest != use.read_digest if known else other.size != use.size:
        message = (
            f"{use.name} changed since {who} ran{_by(use.read_at)}: what was trained before and after "
            "the change is ranked together, but has not read the same data"
        )
        yield FileFinding("note", use.path, message)


def _differ(first: str, second: str) -> bool:
    return bool(first and second) and first != second


def _at(line: str) -> str:
    return f"{line} " if line else "it "


def _by(line: str) -> str:
    return f" ({line})" if line else ""
