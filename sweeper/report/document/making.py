"""Making a report: what is read for it, and where it goes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sweeper.installation import DISTRIBUTION, VERSION
from sweeper.report.document.content import check_comparable, content_of
from sweeper.report.document.pictures import Picture, pictures_of, write_png
from sweeper.report.document.tables import Row
from sweeper.report.document.writing import render, write
from sweeper.results import StudyResults
from sweeper.settings import Settings
from sweeper.storage.database import Database
from sweeper.storage.repository import Repository


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """What is asked for.

    Attributes:
        output: The file; ``STUDY-report.html`` here by default.
        compare: Another study of the same database and the same objective.
        png: A directory for the pictures as PNG files; None for none.
        force: Replace a file that is no report.
        patience: Seconds to wait for a busy database.
    """

    study: str
    settings: Settings
    output: Path | None = None
    compare: str | None = None
    png: Path | None = None
    force: bool = False
    patience: float = 10.0


@dataclass(frozen=True)
class Written:
    """What was written."""

    page: Path
    pictures: tuple[Path, ...]


def make_report(request: ReportRequest) -> Written:
    """Read the study, draw it, and write the page and the pictures.

    Raises:
        UnknownStudyError: There is no such study.
        UsageError: The studies cannot be compared, a package or browser is missing, or what is at
            the output is no report.
        ExecutionError: The browser that draws PNG files failed.
        DatabaseUnavailableError: The database does not answer.
    """
    settings = request.settings
    with Database.open(settings.storage, create=False, patience=request.patience) as database:
        repository = Repository(database)
        results, row = _read(repository, request.study)
        other = None if request.compare is None else _read(repository, request.compare)[0]
    if other is not None:
        check_comparable(results, other)
    pictures: tuple[Picture, ...] = pictures_of(results, other)
    commands = _commands(results, row, settings)
    content = content_of(results, row, commands, datetime.now(UTC), other)
    page = request.output or Path(f"{request.study}-report.html")
    write(render(content, pictures), page, force=request.force)
    drawn = () if request.png is None else write_png(pictures, request.png)
    return Written(page, drawn)


def _read(repository: Repository, name: str) -> tuple[StudyResults, Row]:
    results = StudyResults(repository.status(name), repository.trials(name))
    stored = repository.study(name)
    changes = tuple(
        text for accepted in repository.definition_changes(name) for text in accepted.changes
    )
    source = stored.source or {}
    location, called = source.get("location"), source.get("name")
    target = f"{location}:{called}" if location and called else location
    row = Row(
        definition=dict(stored.definition),
        fingerprint=stored.fingerprint,
        code=None if stored.code is None else stored.code.digest,
        changes=changes,
        source=target or None,
        environments=repository.environments(name),
    )
    return results, row


def _commands(results: StudyResults, row: Row, settings: Settings) -> list[tuple[str, str]]:
    status = results.status
    commands = []
    versions = next((dict(e.versions) for e in row.environments if e.versions), {})
    python = versions.pop("python", None)
    pinned = [f"{name}=={version}" for name, version in versions.items()]
    words = ["pip", "install", f"{DISTRIBUTION}=={VERSION}", *pinned]
    on = "" if python is None else f", on Python {python}"
    commands.append((shlex.join(words), f"installs what the first attempts ran with{on}"))
    if status.finished < status.target:
        commands.append((settings.command("resume", status.study), "goes on with the study"))
    for trial in results.pareto[:3]:
        number = str(trial.number)
        commands.append(
            (
                settings.command("verify", status.study, "--trial", number),
                f"trains trial {number} again from nothing and compares every digest with this one's",
            )
        )
    if row.source is not None:
        again = shlex.join(["sweeper", "run", row.source, "--runs-dir", "runs-again"])
        commands.append(
            (again, "runs the whole study again, beside this one: every digest must be the same")
        )
    return commands
