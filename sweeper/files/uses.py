"""Uses of files by one trial, as records that travel in messages and are stored with the attempt."""

from __future__ import annotations

import dbm
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

MOST_BYTES = 256 * 2**20
"""Size above which no digest of a file is computed."""

_CHUNK = 1 << 20
DATED = frozenset({"fingerprint.pb", "metadata.json"})
"""Files, and members of a ``.keras`` file, that contain a time or a random id beside the content of others."""

DESCRIPTIONS = frozenset({"dataset_spec.pb", "saved_model.pb", "snapshot.metadata"})
"""Names of files that describe the directory which contains them."""


@dataclass
class FileUse:
    """Use of one file outside of the trial's own directory.

    Attributes:
        path: Absolute path.
        existed: Whether the file was there when the trial first used it.
        asked: Whether the trial looked for the file, or tried to read it, before it wrote to it.
        read: Whether the trial read content that it had not written itself.
        wrote: Whether the trial wrote to the file.
        changed: Whether another process changed what the trial wrote, or held the file, before it read it again.
        size: Size in bytes when it was first read; None if it was not.
        modified: Modification time in ns when it was first read; None if it was not.
        read_digest: Digest of the content that was read; empty if it is unknown.
        digest: Digest of the content that the trial wrote last; empty if it is unknown.
        read_at: The user's line, or the callback, that read or looked for it first.
        wrote_at: The user's line, or the callback, that wrote it first.
        left: State of the file as this process closed it; for the recorder only.
        done: Kinds of use that need no further record; for the recorder only.
    """

    path: str
    existed: bool = False
    asked: bool = False
    read: bool = False
    wrote: bool = False
    changed: bool = False
    size: int | None = None
    modified: int | None = None
    read_digest: str = ""
    digest: str = ""
    read_at: str = ""
    wrote_at: str = ""
    left: tuple[int, ...] | None = None
    done: int = 0

    @property
    def name(self) -> str:
        """The path for messages: relative to the current directory if it is below it."""
        path, here = Path(self.path), Path.cwd()
        return str(path.relative_to(here)) if path.is_relative_to(here) else self.path


def uses_to_json(uses: Iterable[FileUse]) -> dict[str, Any]:
    """Return the uses of one attempt as they are stored: those of their fields that are set."""
    stored = [
        asdict(replace(use, left=None, done=0)) for use in sorted(uses, key=lambda use: use.path)
    ]
    return {
        "uses": [{k: v for k, v in each.items() if v not in (False, None, "")} for each in stored]
    }


def uses_from_json(stored: Mapping[str, Any] | None) -> tuple[FileUse, ...]:
    """Return the inverse of `uses_to_json`."""
    return tuple(FileUse(**use) for use in (stored or {}).get("uses", ()))


def shown_files(stored: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the files of ``show --json`` from those stored with a trial's attempts.

    ``"sought"`` marks a written file that the trial had looked for, or tried to read, and not found.
    """
    shown: dict[str, list[Any]] = {"read": [], "written": [], "notices": []}
    latest: dict[str, FileUse] = {}
    for files in stored:
        latest |= {use.path: use for use in uses_from_json(files)}
        shown["notices"] += [n for n in files.get("notices", ()) if n not in shown["notices"]]
    for use in latest.values():
        if use.read:
            shown["read"].append({"path": use.path, "digest": use.read_digest or None})
        if use.wrote:
            sought = {"sought": True} if use.asked and not use.existed else {}
            shown["written"].append({"path": use.path, "digest": use.digest or None, **sought})
    return shown


def set_aside(created: Iterable[str], directory: Path) -> None:
    """Move files that a trial created into a directory, which is created if necessary.

    Raises:
        OSError: A file cannot be moved.
    """
    there = [part for path in sorted(created) for part in _parts(Path(path)) if part.exists()]
    for number, path in enumerate(there):
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.move(path, directory / f"{number}-{path.name}")


def _parts(file: Path) -> list[Path]:
    """Return a file with the files or the directory that belong to it."""
    if file.name in DESCRIPTIONS:
        return [file.parent]
    if file.suffix != ".index":
        return [file]
    patterns = (f"{file.stem}.data-*", f"{file.stem}_*.lockfile")
    return [file, *(part for pattern in patterns for part in file.parent.glob(pattern))]


def content_digest(path: str) -> str:
    """Return the XXH3-128 digest (hex) of a file's content; empty if there is no such file, or a huge one.

    Of an archive the digest is of its members' content, because an archive contains times. Of the file
    that describes a saved dataset or model the digest is of the files beside it, which contain its values.
    """
    file = Path(path)
    digest = xxhash.xxh3_128()
    try:
        parts = _beside(file)
        if file.name in DATED or sum(part.stat().st_size for part in parts) > MOST_BYTES:
            return ""
        # The bytes of a store of `dbm.ndbm` differ between equal contents.
        if file.suffix == ".db" and dbm.whichdb(path.removesuffix(".db")) == "dbm.ndbm":
            with dbm.open(path.removesuffix(".db")) as opened:
                for key in sorted(map(bytes, opened.keys())):  # type: ignore[arg-type] # always bytes
                    digest.update(b"%b\0%b\0" % (key, opened[key]))
            return digest.hexdigest()
        for part in parts:
            if zipfile.is_zipfile(part):
                with zipfile.ZipFile(part) as archive:
                    members = [m for m in archive.infolist() if m.filename not in DATED]
                    for each in sorted(members, key=lambda m: m.filename):
                        digest.update(f"{each.filename}:{each.CRC}:{each.file_size};".encode())
                continue
            with part.open("rb") as content:
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
    except (OSError, zipfile.BadZipFile, *dbm.error):  # another process holds or changes it
        return ""
    return digest.hexdigest()


def _beside(file: Path) -> list[Path]:
    """Return the files that contain the content which ``file`` describes."""
    if file.name in {"dataset_spec.pb", "snapshot.metadata"}:
        chunks = [each for each in file.parent.rglob("*.snapshot") if each.is_file()]
        # The directory of one run has a random name, and the metadata of a snapshot contain it.
        chunks.sort(key=lambda each: (each.parent.name, each.name))
        return chunks if file.name == "snapshot.metadata" else [file, *chunks]
    variables = file.parent / "variables" / "variables.index"
    if file.name == "saved_model.pb" and variables.is_file():
        return [variables]
    return [file]
