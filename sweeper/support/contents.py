"""Digest of a file's content, which two files share that were written at different times."""

import os
import zipfile
from contextlib import suppress
from pathlib import Path

import xxhash

MOST_BYTES = 256 * 2**20
"""Size above which only the size and the beginning of a file count."""

_CHUNK = 1 << 20
_DATED = frozenset({"metadata.json"})
"""Members of a ``.keras`` file that contain a time or a random id beside the content of others."""


def content_digest(path: str) -> str:
    """Return the XXH3-128 digest (hex) of a file's content, or of what can be read of it.

    Of an archive the digest is of its members' content, because an archive contains times.
    """
    digest = xxhash.xxh3_128()
    # Another process may hold, change or remove it; the digest is then of what could be read.
    with suppress(OSError, zipfile.BadZipFile), Path(path).open("rb") as content:
        head = content.read(_CHUNK)
        size = os.fstat(content.fileno()).st_size
        if head.startswith(b"PK"):
            with zipfile.ZipFile(content) as archive:
                members = [m for m in archive.infolist() if m.filename not in _DATED]
                for member in sorted(members, key=lambda m: m.filename):
                    digest.update(f"{member.filename}:{member.CRC}:{member.file_size};".encode())
        elif size > MOST_BYTES:
            digest.update(b"%d:%b" % (size, head))
        else:
            digest.update(head)
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
