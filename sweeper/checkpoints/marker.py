"""The marker of a directory of checkpoints: the one study, or training, that it belongs to.

A study's directory is named for the study, and so for every study of that name: another database's,
or one whose database is gone. The marker says which, by the random identity that the study has in
its database, and never by the name, which a study that is set aside leaves to the next. It is
written before anything else is, compared at every start, and never replaced by another's: two who
begin in one directory at the same moment cannot both have made it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from sweeper.checkpoints.names import CheckpointName, unfinished_name
from sweeper.checkpoints.operations import open_regular
from sweeper.errors import CheckpointError, ForeignCheckpointError

MARKER_FILE = "owner.json"

_LARGEST = 1 << 16
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Marker:
    """Owner of a checkpoint directory: study, trial and seed.

    Attributes:
        study: The study's name; empty for a training without a study.
        identity: The study's in its database, 32 characters; a training's own.
        seed: The study's, or the training's.
        definition: Fingerprint of the study's definition, or of the training's data.
        written: When the marker was written, in ISO format.
    """

    study: str
    identity: str
    seed: int
    definition: str
    written: str = ""

    def describe(self) -> str:
        """For a person."""
        what = f"study {self.study!r}" if self.study else "a training without a study"
        since = f", since {self.written[:19]}" if self.written else ""
        return f"{what} (identity {self.identity[:8]}, seed {self.seed}{since})"


def read_marker(directory: Path) -> Marker | None:
    """Read the marker of ``directory``; return None if it has none.

    Raises:
        ForeignCheckpointError: There is something in its place that nobody can read.
        CheckpointError: It cannot be read.
    """
    path = directory / MARKER_FILE
    try:
        with open_regular(path) as file:
            content = json.loads(file.read(_LARGEST))
        return _parsed(content)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError, CheckpointError) as error:
        msg = (
            f"{path} does not name the owner of the directory ({type(error).__name__}: {error}); if it "
            "is this study's, remove the file; sweeper writes it again"
        )
        raise ForeignCheckpointError(msg) from error
    except OSError as error:
        msg = f"{path} names the owner of the directory and cannot be read: {error}"
        raise CheckpointError(msg) from error


def foreign_owner(directory: Path, expected: Marker | None, *, adopt: bool = False) -> str | None:
    """Say who else ``directory`` belongs to; None where it is free, or as expected.

    Args:
        directory: Of a study, or of a training's checkpoints.
        expected: Who asks; None for one that has no identity yet, whose nothing can be.
        adopt: Whether checkpoints without a marker are taken for one's own: an older version wrote
            none, and only who has a record of such checkpoints can say that they are his.

    Raises:
        CheckpointError: It cannot be read.
    """
    found = read_marker(directory)
    if found is None:
        if adopt or not _holds_checkpoints(directory):
            return None
        return "somebody who left no marker there"
    if expected is None or found.identity != expected.identity:
        return found.describe()
    return None


def claim_directory(directory: Path, marker: Marker, *, adopt: bool = False) -> None:
    """Make ``directory`` ``marker``'s, and leave it as it is if it is another's.

    Args:
        directory: Of a study, or of a training's checkpoints; made if need be.
        marker: Whose it is to be.
        adopt: As for `foreign_owner`.

    Raises:
        ForeignCheckpointError: It is another's; says whose.
        CheckpointError: It cannot be read or written.
    """
    for _ in range(2):
        foreign = foreign_owner(directory, marker, adopt=adopt)
        if foreign is not None:
            msg = (
                f"{directory} belongs to {foreign}, and not to {marker.describe()}; going on with "
                "what is there would mix the two, so nothing was read or written. Give this one "
                f"another directory or another name, or move {directory} away"
            )
            raise ForeignCheckpointError(msg)
        found = read_marker(directory)
        if found is not None and (found.seed, found.definition) == (marker.seed, marker.definition):
            return
        try:
            _write(directory, marker, replacing=found is not None)
        except FileExistsError:
            # Somebody else's, or another worker's of this study: it says itself.
            continue
        except OSError as error:
            msg = (
                f"{directory / MARKER_FILE} names the owner of the directory and cannot be written: "
                f"{error}; make it writable, or name another directory with --runs-dir"
            )
            raise CheckpointError(msg) from error
        return


def _parsed(content: Mapping[str, object]) -> Marker:
    study, identity, definition = (content[n] for n in ("study", "identity", "definition"))
    seed, written = content["seed"], content["written"]
    if not isinstance(seed, int) or not all(
        isinstance(text, str) for text in (study, identity, definition, written)
    ):
        msg = f"it says {dict(content)!r}"
        raise ValueError(msg)
    return Marker(str(study), str(identity), seed, str(definition), str(written))


def _holds_checkpoints(directory: Path) -> bool:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        msg = f"{directory} cannot be listed: {error}"
        raise CheckpointError(msg) from error
    return any(name.startswith("trial-") or CheckpointName.parse(name) for name in names)


def _write(directory: Path, marker: Marker, *, replacing: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({**asdict(marker), "written": written}, indent=1) + "\n"
    path = directory / MARKER_FILE
    temporary = directory / unfinished_name("writing", MARKER_FILE)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replacing:
            temporary.replace(path)
            return
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS or path.exists():
                raise
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
