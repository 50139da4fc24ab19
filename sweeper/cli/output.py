"""Output of the verbs on standard output (JSON, CSV or a table), and the database that they read.

JSON has no NaN and no infinities (RFC 8259), but Python's encoder would write them, so they are
written as ``null``.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from sweeper.errors import UsageError
from sweeper.records.printing import finite_json
from sweeper.records.results import StudyStatus, TrialRecord
from sweeper.support.shown import shown_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sweeper.spec.settings import Settings

PATIENCE = 10.0
"""Seconds that a reading verb waits for a busy database."""


class Reader(Protocol):
    """The part of `sweeper.db.repository.Repository` that the command line reads."""

    def status(self, study: str, *, all_code: bool = False, each: bool = True) -> StudyStatus: ...

    def statuses(self, *, each: bool = True) -> Sequence[StudyStatus]: ...

    def trial(self, study: str, number: int) -> TrialRecord: ...


def read_settings(
    storage: str | None, runs_dir: Path | None, checkpoints: str | None = None
) -> "Settings":
    """Resolve the settings of a reading verb."""
    from sweeper.spec.settings import load_settings

    return load_settings(storage=storage, runs_dir=runs_dir, checkpoints=checkpoints)


@contextmanager
def open_reader(settings: "Settings") -> Iterator[Reader]:
    """Open the database of ``settings`` for reading, and close it afterwards.

    Raises:
        DatabaseUnavailableError: There is no database, or it cannot be opened.
        DatabaseVersionError: Another version wrote it.
    """
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with Database.open(settings.storage, create=False, patience=PATIENCE) as database:
        yield Repository(database)


def say_beginning(study: str) -> None:
    """Print to standard error that TensorFlow and the study are being imported."""
    typer.echo(f"importing TensorFlow and {shown_text(study)} ...", err=True)


def print_json(value: Any) -> None:
    """Print one JSON value, indented, in UTF-8, on standard output."""
    typer.echo(json.dumps(finite_json(value), allow_nan=False, ensure_ascii=False, indent=2))


def check_one_form(*, as_json: bool, as_csv: bool) -> None:
    """Refuse ``--json`` and ``--csv`` together.

    Raises:
        UsageError: Both were given.
    """
    if as_json and as_csv:
        msg = "--json and --csv were both given; give one of them"
        raise UsageError(msg)


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as CSV (RFC 4180, UTF-8) on standard output, below a header of all their columns.

    Missing values and None are empty; numbers are written with all their digits.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


def print_table(table: "RenderableType") -> None:
    """Print a rich renderable on standard output.

    In a pipe lines are as long as their content, so that ``grep`` and ``awk`` find whole rows.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_WIDTH)
    console.print(table)


_PIPE_WIDTH = 1000
