"""The file that a SQLite database is in: whether it is still the one that was opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy.engine import URL

from sweeper.errors import DatabaseUnavailableError
from sweeper.support.shown import shown_url


@dataclass(frozen=True)
class OpenFile:
    """The file of a SQLite database, as it was when it was opened.

    What is written to a file that somebody removed meanwhile is written without an error, and gone
    with the last process that has it open.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, url: URL) -> Self | None:
        """Return the file at ``url``; None for a server's database."""
        if url.get_backend_name() != "sqlite":
            return None
        path = Path(str(url.database)).absolute()
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(path, found.st_dev, found.st_ino)

    def check(self, url: URL) -> None:
        """See that it is still there.

        Raises:
            DatabaseUnavailableError: It was removed, or another file is in its place.
        """
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            what = "was removed"
        except OSError:
            # The disk does not tell; SQLite will say what it finds.
            return
        else:
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                return
            what = "is another file than it was"
        msg = (
            f"{shown_url(url)} {what} while it was in use, so nothing more can be written "
            "down; checkpoints stay where they are. Put the file back, with its -wal file if there "
            "is one, and resume"
        )
        raise DatabaseUnavailableError(msg)
