"""Identity of a checkpoint and its directory: names, origin, and the marker of the study that owns it.

A study's directory has the study's name. A study of the same name may be in another database, or its
database may be gone. So a marker file in the directory contains the study's random identity in its
database. It is written before all other files, compared at every start, and never replaced by that of
another study. It is created atomically, so only one of two studies that start in one directory gets it.

A checkpoint that verifies is complete, but may belong to another study: directories survive their
database, and two databases may use one directory. Resuming from another study's checkpoint would give
a wrong result. So every manifest contains the checkpoint's origin, and readers refuse other origins.

A checkpoint's name is ``step-000000420``, or ``step-000000420.2`` if the same attempt takes that step
again: a rename cannot replace a directory, and removing the first one earlier would leave a moment
without either. A reader renames a damaged checkpoint to ``step-000000420.corrupt-1``. ``.writing-…``
and ``.deleting-…`` are names of unfinished work, which readers ignore.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeper.checkpoint.operations import NO_LINKS
from sweeper.errors import CheckpointError, ForeignCheckpointError, UsageError
from sweeper.records.printing import json_fields

_CHECKPOINT = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_CORRUPT = re.compile(r"step-\d{9,}(?:\.\d+)?\.corrupt-\d+")
_UNFINISHED = re.compile(r"\.(?:writing|deleting)-.+-\d+-\d+")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """Name of a complete checkpoint; of two names, the greater is newer."""

    step: int
    revision: int = 1

    def __str__(self) -> str:
        suffix = "" if self.revision == 1 else f".{self.revision}"
        return f"step-{self.step:09d}{suffix}"

    @classmethod
    def parse(cls, name: str) -> CheckpointName | None:
        """Return the parsed ``name``, or None if it is not the name of a complete checkpoint."""
        match = _CHECKPOINT.fullmatch(name)
        if match is None:
            return None
        parsed = cls(int(match[1]), int(match[2] or 1))
        return parsed if str(parsed) == name else None


def unfinished_name(work: str, name: str) -> str:
    """Return a new name for unfinished ``work`` ("writing", "deleting")."""
    return f".{work}-{name}-{os.getpid()}-{time.time_ns()}"


def is_unfinished(name: str) -> bool:
    return _UNFINISHED.fullmatch(name) is not None


def is_marked_corrupt(name: str) -> bool:
    """Return whether ``name`` is that of a damaged checkpoint that a reader has renamed."""
    return _CORRUPT.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of one checkpoint, or owner of a directory of checkpoints.

    Attributes:
        study: The study's name; empty for a training without a study.
        identity: The study's random identity in its database; without a study, that of the
            training's directory.
        trial: The trial's number.
        seed: The study's seed.
        definition: Fingerprint of the study's definition, or of a training's data. If it is empty in
            an expected origin, any definition and seed are accepted.
        parameters: The trial's parameters, by name.
        former: Fingerprints of earlier definitions whose checkpoints may be resumed, because the
            change was accepted; not written.
        directory: `Trial.directory` at the time of writing, because paths in the state may begin with
            it; empty for none.
        written: Time at which an owner's marker was written, in ISO format; not in a manifest.
    """

    study: str
    identity: str
    trial: int
    seed: int
    definition: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    directory: str = ""
    written: str = ""

    def describe(self) -> str:
        owner = f"study {self.study!r}" if self.study else "a training without a study"
        since = f", since {self.written[:19]}" if self.written else ""
        return f"{owner} (identity {self.identity[:8]}, seed {self.seed}{since})"

    def to_json(self) -> dict[str, Any]:
        names = ("study", "identity", "trial", "seed", "definition", "parameters", "directory")
        return json_fields(self, *names)

    def differences(self, other: Origin) -> list[str]:
        """Return the reasons not to resume from a checkpoint of ``other``, one phrase each.

        Studies are compared by identity, because a study may be renamed. Only parameters that both have
        are compared, because a trial may request further ones during training.
        """
        if other.identity != self.identity:
            return [_studies(other, self)]
        different = []
        if other.trial != self.trial:
            different.append(f"it belongs to trial {other.trial}, and this is trial {self.trial}")
        if not self.definition:
            return different
        if other.definition not in (self.definition, *self.former):
            reason = "it was trained on other data"
            if self.study:
                reason = (
                    f"its definition has the fingerprint {other.definition[:8]}, and the study's has "
                    f"{self.definition[:8]}"
                )
            different.append(reason)
        if other.seed != self.seed and other.definition not in self.former:
            different.append(f"its seed was {other.seed}, and is {self.seed} now")
        for name in sorted(other.parameters.keys() & self.parameters.keys()):
            stored_value = other.parameters[name]
            value = self.parameters[name]
            if repr(stored_value) != repr(value):
                different.append(f"its {name} was {stored_value!r}, and is {value!r} now")
        return different


def _studies(other: Origin, expected: Origin) -> str:
    if not expected.study:
        return f"it belongs to {other.describe()}"
    if other.study != expected.study:
        return f"it belongs to {other.describe()}, and this is study {expected.study!r}"
    return (
        f"it belongs to another {other.describe()}; this study has identity "
        f"{expected.identity[:8]} (seed {expected.seed})"
    )


MARKER_FILE = "owner.json"


def read_marker(directory: Path) -> Origin | None:
    """Return the marker of ``directory``, or None; see `check_owner` for errors."""
    path = directory / MARKER_FILE
    try:
        content = json.loads(path.read_bytes())
        return Origin(**{**content, "trial": 0})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise ForeignCheckpointError(
            f"{path} does not name the owner of the directory ({type(error).__name__}: {error}); "
            "if the directory belongs to this study, remove the file, and sweeper writes it again"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path}, which names the owner of the directory, cannot be read: {error}"
        ) from error


def check_owner(
    directory: Path, expected: Origin | None, *, adopt: bool = False, new_in: str = ""
) -> Origin | None:
    """Check that ``directory`` has no other owner, and return its marker; None if it has none.

    ``expected`` is None for a study that is new in the database ``new_in``, and can own no files yet. Checkpoints
    in a directory without a marker belong to ``expected`` only with ``adopt``.

    Raises:
        ForeignCheckpointError: It has another owner, whom the message names, or an invalid marker.
        CheckpointError: The directory or its marker cannot be read.
    """
    marker = read_marker(directory)
    if marker is None and (adopt or not _holds_checkpoints(directory)):
        return None
    if marker is not None and expected is not None and marker.identity == expected.identity:
        return marker
    owner = "an unknown owner, who left no marker there" if marker is None else marker.describe()
    mine = f"a study that is new in {new_in}" if expected is None else expected.describe()
    raise ForeignCheckpointError(
        f"{directory} belongs to {owner}, and not to {mine}; to use its files would mix the two, so "
        "nothing was read or written. Give this one another directory (--runs-dir) or another name, "
        f"name the other's database (--storage), or move {directory} away"
    )


def claim_directory(directory: Path, marker: Origin, *, adopt: bool = False) -> None:
    """Write ``marker`` to ``directory``, unless the directory has another owner; see `check_owner`.

    The directory is created if missing.
    """
    for _ in range(2):
        owner = check_owner(directory, marker, adopt=adopt)
        if owner is not None and (owner.seed, owner.definition) == (marker.seed, marker.definition):
            return
        try:
            _write(directory, marker, replacing=owner is not None)
        except FileExistsError:
            # Another process has just written a marker, which the next round reads.
            continue
        except OSError as error:
            raise CheckpointError(
                f"{directory / MARKER_FILE}, which names the owner of the directory, cannot be "
                f"written: {error}; make it writable, or name another directory with --runs-dir"
            ) from error
        return


LOCK_FILE = "lock"
"""File in a directory of `sweeper.fit` that its process locks while it trains; it names the process."""


@contextlib.contextmanager
def hold_directory(directory: Path) -> Iterator[None]:
    """Keep other processes from training in ``directory`` meanwhile.

    The lock is this process's alone: it ends with the process, and programs that it has started do not have it.

    Raises:
        UsageError: Another process trains there.
    """
    with contextlib.ExitStack() as stack:
        # A disk that is read-only, or has no locks, is used without one.
        with contextlib.suppress(OSError):
            file = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, file)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(file, 200).decode(errors="replace").strip()
                raise UsageError(
                    f"{holder or 'another process'} is training in {directory}; wait for its end, which this call then "
                    "continues from, or give another training another directory (checkpoints=…)"
                ) from None
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield


def _holds_checkpoints(directory: Path) -> bool:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be listed: {error}") from error
    return any(name.startswith("trial-") or CheckpointName.parse(name) for name in names)


def _write(directory: Path, marker: Origin, *, replacing: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    marker = replace(marker, written=datetime.now(UTC).isoformat(timespec="seconds"))
    content = json_fields(marker, "study", "identity", "seed", "definition", "written")
    path = directory / MARKER_FILE
    temporary = directory / unfinished_name("writing", MARKER_FILE)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if replacing:
            temporary.replace(path)
            return
        # A link fails if another process has just written its marker; a rename would replace it.
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in NO_LINKS or path.exists():
                raise
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
