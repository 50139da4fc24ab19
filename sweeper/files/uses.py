"""Uses of files by one trial, as records that travel in messages and are stored with the attempt."""

from __future__ import annotations

import dbm
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

MOST_BYTES = 256 * 2**20
"""Size above which no digest of a file is computed."""

_CHUNK = 1 << 20
_DATED = frozenset({"fingerprint.pb", "metadata.json"})
"""Files, and members of a ``.keras`` file, that contain a time or a random id beside the content of others."""


@dataclass
class FileUse:
    """Use of one file outside of the trial's own directory.

    Attributes:
        path: Absolute path.
        existed: Whether the file was there when the trial first used it.
        asked: Whether the trial looked for the file, or tried to read it, before it wrote to it.
        read: Whether the trial read content that it had not written itself.
        wrote: Whether the trial wrote to the file.
        size: Size in bytes when it was first read; None if it was not.
        modified: Modification time in ns when it was first read; None if it was not.
        read_digest: Digest of the content that was read; empty if it is unknown.
        digest: Digest of the content at the trial's end, of a written file; empty if it is unknown.
        read_at: The user's line, or the callback, that read or looked for it first.
        wrote_at: The user's line, or the callback, that wrote it first.
        gone: Whether the trial removed or renamed it; such uses are not reported.
    """

    path: str
    existed: bool = False
    asked: bool = False
    read: bool = False
    wrote: bool = False
    size: int | None = None
    modified: int | None = None
    read_digest: str = ""
    digest: str = ""
    read_at: str = ""
    wrote_at: str = ""
    gone: bool = False

    @property
    def name(self) -> str:
        """The path for messages: relative to the current directory if it is below it."""
        path = Path(self.path)
        here = Path.cwd()
        return str(path.relative_to(here)) if path.is_relative_to(here) else self.path

    @property
    def depends(self) -> bool:
        """Whether the trial's result may depend on an earlier writer of the file."""
        return self.read or (self.asked and self.existed)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value not in (False, None, "")}


def uses_to_json(uses: Iterable[FileUse], left_out: int = 0) -> dict[str, Any]:
    """Return the uses of one attempt as they are stored: ``written`` and ``read``, by path.

    Args:
        uses: The uses.
        left_out: Number of further files, which were not recorded.
    """
    ordered = sorted(uses, key=lambda use: use.path)
    stored: dict[str, Any] = {
        "written": [use.to_json() for use in ordered if use.wrote],
        "read": [use.to_json() for use in ordered if not use.wrote],
    }
    return {**stored, "left_out": left_out} if left_out else stored


def uses_from_json(stored: Mapping[str, Any] | None) -> tuple[FileUse, ...]:
    """Return the inverse of `uses_to_json`."""
    if not stored:
        return ()
    return tuple(FileUse(**use) for use in [*stored.get("written", ()), *stored.get("read", ())])


def shown_uses(uses: Sequence[FileUse], notices: Iterable[str]) -> dict[str, list[Any]]:
    """Return the files of ``show --json``: path and digest of each file read and written, and the notices.

    ``"sought"`` marks a written file that the trial had looked for, or tried to read, and not found.
    """
    written = [use for use in uses if use.wrote]
    return {
        "read": [{"path": use.path, "digest": use.read_digest or None} for use in uses if use.read],
        "written": [
            {
                "path": use.path,
                "digest": use.digest or None,
                **({"sought": True} if use.asked and not use.existed else {}),
            }
            for use in written
        ],
        "notices": list(dict.fromkeys(notices)),
    }


def content_digest(path: str) -> str:
    """Return the XXH3-128 digest (hex) of a file's content; empty if there is no such file, or a huge one.

    Of an archive the digest is of its members' content, because an archive contains times. Of the file
    that describes a saved dataset or model the digest is of the files beside it, which contain its values.
    """
    file = Path(path)
    if file.name in _DATED:
        return ""
    try:
        parts = _beside(file)
        if sum(part.stat().st_size for part in parts) > MOST_BYTES:
            return ""
        digest = xxhash.xxh3_128()
        if _is_key_value_store(file):
            return _digest_of_items(str(file.with_suffix("")))
        for part in parts:
            if zipfile.is_zipfile(part):
                with zipfile.ZipFile(part) as archive:
                    members = [m for m in archive.infolist() if m.filename not in _DATED]
                    for each in sorted(members, key=lambda m: m.filename):
                        digest.update(f"{each.filename}:{each.CRC}:{each.file_size};".encode())
                continue
            with part.open("rb") as opened:
                while chunk := opened.read(_CHUNK):
                    digest.update(chunk)
    except (OSError, zipfile.BadZipFile):
        return ""
    return digest.hexdigest()


def _is_key_value_store(file: Path) -> bool:
    """Return whether a file is one of ``dbm.ndbm``, whose bytes differ between equal contents."""
    return file.suffix == ".db" and dbm.whichdb(str(file.with_suffix(""))) == "dbm.ndbm"


def _digest_of_items(name: str) -> str:
    digest = xxhash.xxh3_128()
    try:
        with dbm.open(name) as opened:
            for key in sorted(map(bytes, opened.keys())):  # type: ignore[arg-type] # always bytes
                digest.update(b"%b\0%b\0" % (key, opened[key]))
    except dbm.error:  # another process holds it
        return ""
    return digest.hexdigest()


def _beside(file: Path) -> list[Path]:
    if file.name in {"dataset_spec.pb", "snapshot.metadata"}:
        chunks = [each for each in file.parent.rglob("*.snapshot") if each.is_file()]
        # The directory of one run has a random name, and the metadata of a snapshot contain it.
        chunks.sort(key=lambda each: (each.parent.name, each.name))
        return chunks if file.name == "snapshot.metadata" else [file, *chunks]
    variables = file.parent / "variables" / "variables.index"
    if file.name == "saved_model.pb" and variables.is_file():
        return [variables]
    return [file]
