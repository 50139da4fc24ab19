"""Shell completion of study names and trial numbers.

Someone waits at a prompt: whatever goes wrong, there is nothing to complete, and nothing is said.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sweeper.storage.database import Database

_PATIENCE = 1.0
"""Seconds for a database that is busy."""


def complete_study(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of stored studies that begin with ``incomplete``."""
    from sweeper.storage.names import study_names

    found: list[str] = []
    with contextlib.suppress(Exception), _database(context) as database:
        found += [name for name in study_names(database) if name.startswith(incomplete)]
    return found


def complete_trial(context: typer.Context, incomplete: str) -> list[str]:
    """Return the numbers of the trials of the study before it that begin with ``incomplete``."""
    from sweeper.storage.names import trial_numbers

    found: list[str] = []
    study = context.params.get("study")
    with contextlib.suppress(Exception), _database(context) as database:
        if study:
            found += [
                n for n in map(str, trial_numbers(database, study)) if n.startswith(incomplete)
            ]
    return found


@contextlib.contextmanager
def _database(context: typer.Context) -> Iterator["Database"]:
    """Open the database that the verb would open with the options typed so far."""
    from sweeper.settings import load_settings
    from sweeper.storage.database import Database

    runs_dir = context.params.get("runs_dir")
    settings = load_settings(
        storage=context.params.get("storage"), runs_dir=Path(runs_dir) if runs_dir else None
    )
    with Database.open(settings.storage, create=False, patience=_PATIENCE) as database:
        yield database
