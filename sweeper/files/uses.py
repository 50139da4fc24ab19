"""Uses of files by trials, and the rules by which one trial depends on another, or may.

A file that was there before the study is the user's. A trial that reads what another trial wrote is not
independent if its own content would have been different. A run knows that only of a file that the trial
overwrote, before or afterwards; `sweeper check` knows it, because it trains a trial with what another one left,
and without.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sweeper.records.findings import Finding


@dataclass
class FileUse:
    """Use of one file outside of the trial's own directory.

    Attributes:
        path: Absolute path.
        existed: Whether the file was there when the trial first used or read it.
        asked: Whether the trial looked for the file, or tried to read it, before it wrote to it.
        wrote: Whether the trial wrote to the file.
        appends: Whether it only added to what the file contained.
        left: Whether the file was new, or another one, at the trial's end, without a recorded write.
        changed: Whether another process changed what the trial wrote before it read it again.
        read_digest: Digest of the content that the trial read and had not written; empty if it read none.
        digest: Digest of the content that the trial wrote last; empty if it is unknown.
        read_at: The user's line, or the callback, that read or looked for it first.
        wrote_at: The user's line, or the callback, that wrote it first.
        closed: State of the file as this process closed it; for the recorder only.
        done: Kinds of use that need no further record; for the recorder only.
    """

    path: str
    existed: bool = False
    asked: bool = False
    wrote: bool = False
    appends: bool = False
    left: bool = False
    changed: bool = False
    read_digest: str = ""
    digest: str = ""
    read_at: str = ""
    wrote_at: str = ""
    closed: tuple[int, ...] | None = None
    done: int = 0

    @property
    def name(self) -> str:
        """The path for messages: relative to the current directory if it is below it."""
        return self.path.removeprefix(f"{Path.cwd()}/")


_STORED = [field.name for field in fields(FileUse) if field.name not in ("closed", "done")]


def uses_to_json(uses: Iterable[FileUse]) -> dict[str, Any]:
    """Return the uses of one attempt as they are stored: those of their fields that are set."""
    ordered = sorted(uses, key=lambda use: use.path)
    return {"uses": [{n: value for n in _STORED if (value := getattr(u, n))} for u in ordered]}


def uses_from_json(stored: Mapping[str, Any] | None) -> tuple[FileUse, ...]:
    """Return the inverse of `uses_to_json`."""
    uses = (stored or {}).get("uses", ())
    return tuple(FileUse(**{n: use[n] for n in _STORED if n in use}) for use in uses)


@dataclass(frozen=True)
class TrialUses:
    """Uses of files by one attempt at the trial ``who``, such as "trial 3"."""

    who: str
    uses: tuple[FileUse, ...]


CURE = "write it below `trial.directory`, which each trial has for itself"
CURE_OR_BEFORE = f"{CURE}, or make the file before the study begins"


def in_a_run(trial: TrialUses, others: Sequence[TrialUses]) -> Iterator[Finding]:
    """Yield the findings about one trial of a run; the subject of each is the absolute path of a file.

    It is an "error" if a trial's result depends on another trial, a "warning" if it may, and a "note" if
    trials overwrite each other's file or an input has changed.

    ``others`` are attempts at other trials, of this study or earlier ones in the same database, and earlier
    attempts at the trial, the latest last.
    """
    for use in trial.uses:
        other_uses = _uses_of(use.path, others)
        of_others = [(who, other) for who, other in other_uses if who != trial.who]
        # A change that another trial reported before this one wrote can be explained only now.
        for who, other in dict(of_others).items() if use.wrote else ():
            if other.changed:
                yield _changed(who, other, trial.who, use)
        wrote = [(who, other) for who, other in of_others if other.wrote]
        if not any(other.wrote for _, other in other_uses):
            wrote = [(who, other) for who, other in of_others if other.left]
        read = [(who, other) for who, other in other_uses if other.read_digest and not other.wrote]
        who, writer_use = wrote[-1] if wrote else ("another process", FileUse(use.path))
        if use.changed:
            yield _changed(trial.who, use, who, writer_use)
        elif wrote and use.asked and use.existed:
            yield from _dependent(trial.who, use, who, writer_use)
        elif (
            wrote
            and _differ(use.digest, writer_use.digest)
            and not (use.appends and writer_use.appends)
        ):
            message = (
                f"{who} and {trial.who} both write {use.name}{_by(use.wrote_at)}, and what is left is one "
                f"trial's alone; {CURE}"
            )
            yield Finding("note", use.path, message)
        elif (
            read and not (wrote or use.wrote) and _differ(read[-1][1].read_digest, use.read_digest)
        ):
            message = (
                f"{use.name} changed since {read[-1][0]} ran{_by(use.read_at)}: what was trained before "
                "and after the change is ranked together, but has not read the same data"
            )
            yield Finding("note", use.path, message)


def _uses_of(path: str, attempts: Iterable[TrialUses]) -> list[tuple[str, FileUse]]:
    """Return the uses of one file, each with its trial, in the order of the attempts."""
    uses = []
    for attempt in attempts:
        uses += [(attempt.who, use) for use in attempt.uses if use.path == path]
    return uses


def _dependent(reader: str, use: FileUse, writer: str, write: FileUse) -> Iterator[Finding]:
    """Yield a finding about a file that a trial found and read, or looked for, and another one wrote."""
    did = "wrote" if write.wrote else "left"
    where = f"which {writer} {did}{_by(write.wrote_at)}"
    if write.wrote and _differ(use.read_digest, use.digest):
        message = (
            f"{reader} is not independent: {_at(use.read_at)}reads {use.name}, {where}, and writes other "
            f"content to it{_by(use.wrote_at)}; {CURE_OR_BEFORE}"
        )
        yield Finding("error", use.path, message)
    elif (use.read_digest and use.digest) or not use.wrote:
        message = (
            f"{reader} {'reads' if use.read_digest else 'looks for'} {use.name}{_by(use.read_at)}, {where}; its "
            f"result does not depend on {writer} only if it would have written the same: `sweeper check "
            "FILE` tells"
        )
        yield Finding("warning", use.path, message)


def _changed(reader: str, use: FileUse, writer: str, write: FileUse) -> Finding:
    message = (
        f"{reader} is not independent: {_at(use.read_at)}uses {use.name}, which {writer} "
        f"wrote{_by(write.wrote_at)} at the same time, so that it has changed since {reader} wrote "
        f"it{_by(use.wrote_at)}; in a factory, {CURE}"
    )
    return Finding("error" if write.wrote else "warning", use.path, message)


def _differ(first: str, second: str) -> bool:
    return bool(first and second) and first != second


def _at(line: str) -> str:
    return f"{line} " if line else "it "


def _by(line: str) -> str:
    return f" ({line})" if line else ""
