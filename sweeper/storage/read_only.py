"""Reading a SQLite file that may not be written: another user's, an archive, a read-only disk.

A reader of a database in WAL mode writes too: it makes a file beside the database, in which readers
and writers see each other. Where it may not, SQLite has to be shown how things stand: whether a writer
has made these files, or there is none and the file does not change.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_only_uri(file: Path) -> str | None:
    """Return the URI under which SQLite reads ``file``; None where it, or its making, may be written.

    A file whose last writer closed it is read as one that does not change. Should somebody with the
    right to begin to write at that very moment, what is read may be of two moments.
    """
    directory = file.parent
    if not file.exists() or (os.access(file, os.W_OK) and os.access(directory, os.W_OK)):
        return None
    log, index = (file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm"))
    uri = file.absolute().as_uri()
    if index.exists() or (log.exists() and log.stat().st_size):
        return f"{uri}?mode=ro"
    return f"{uri}?mode=ro&immutable=1"
