"""Opening the database for the verbs that read it; it is never created by them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sweeper.results import StudyStatus, TrialRecord

if TYPE_CHECKING:
    from sweeper.settings import Settings

PATIENCE = 10.0
"""Seconds that a reading verb waits for a busy database: someone sits before it."""


class Reader(Protocol):
    """The part of `sweeper.storage.repository.Repository` that the command line reads."""

    def status(self, study: str, *, all_code: bool = False, each: bool = True) -> StudyStatus: ...

    def statuses(self, *, each: bool = True) -> Sequence[StudyStatus]: ...

    def trial(self, study: str, number: int) -> TrialRecord: ...


def read_settings(
    storage: str | None, runs_dir: Path | None, checkpoints: str | None = None
) -> "Settings":
    """Resolve where a reading verb finds what it reads."""
    from sweeper.settings import load_settings

    return load_settings(storage=storage, runs_dir=runs_dir, checkpoints=checkpoints)


@contextmanager
def open_reader(settings: "Settings") -> Iterator[Reader]:
    """Open the database of ``settings`` for reading, and close it afterwards.

    Raises:
        DatabaseUnavailableError: There is none, or it cannot be opened.
        DatabaseVersionError: Another version wrote it.
    """
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    with Database.open(settings.storage, create=False, patience=PATIENCE) as database:
        yield Repository(database)
