"""The report: a study's page in one file, whole or not at all."""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import UsageError
from sweeper.spec.settings import Settings
from sweeper.support.installation import DISTRIBUTION, VERSION
from sweeper.views.pages.content import no_address
from sweeper.views.pages.pictures import pictures_of, write_png
from sweeper.views.pages.rendering import GENERATOR, file_of
from sweeper.views.pages.study import Frame, check_comparable, study_page
from sweeper.views.pages.tables import Shown, moment

_LOOKED_AT = 4096


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """Options of a report.

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
    """The files of a report: the page, and the pictures."""

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
    settings, now = request.settings, datetime.now(UTC)
    with Database.open(settings.storage, create=False, patience=request.patience) as database:
        repository = Repository(database)
        shown = read_shown(repository, request.study, now)
        other = None if request.compare is None else repository.results(request.compare)
    if other is not None:
        check_comparable(shown.results, other)
    pictures = pictures_of(shown.results, other)
    frame = Frame(_commands(shown, settings), "How to reproduce it", compared=other)
    page = request.output or Path(f"{request.study}-report.html")
    text = file_of(study_page(shown, pictures, frame), f"{moment(now)} UTC")
    write(text, page, force=request.force)
    drawn = () if request.png is None else write_png(pictures, request.png)
    return Written(page, drawn)


def read_shown(repository: Repository, study: str, now: datetime) -> Shown:
    """Read what a file says of a study.

    Raises:
        UnknownStudyError: There is no such study.
    """
    accepted = repository.definition_changes(study)
    return Shown(
        repository.results(study),
        repository.study(study),
        now,
        no_address,
        environments=repository.environments(study),
        changes=tuple(text for each in accepted for text in each.changes),
    )


def _commands(shown: Shown, settings: Settings) -> tuple[tuple[str, str], ...]:
    status = shown.results.status
    versions = next((dict(e.versions) for e in shown.environments if e.versions), {})
    python = versions.pop("python", None)
    pinned = [f"{name}=={version}" for name, version in versions.items()]
    words = ["pip", "install", f"{DISTRIBUTION}=={VERSION}", *pinned]
    on = "" if python is None else f", on Python {python}"
    commands = [(shlex.join(words), f"installs what the first attempts ran with{on}")]
    if status.finished < status.target:
        commands.append((settings.command("resume", status.study), "goes on with the study"))
    for trial in shown.results.pareto[:3]:
        number = str(trial.number)
        commands.append(
            (
                settings.command("verify", status.study, "--trial", number),
                f"trains trial {number} again from nothing and compares every digest with this one's",
            )
        )
    if shown.source is not None:
        again = shlex.join(["sweeper", "run", shown.source, "--runs-dir", "runs-again"])
        commands.append(
            (again, "runs the whole study again, beside this one: every digest must be the same")
        )
    return tuple(commands)


def write(page: str, path: Path, *, force: bool) -> None:
    """Write the page beside ``path`` under another name, and rename it.

    Raises:
        UsageError: There is something at ``path`` that is no report, and no ``force``; or it cannot
            be written there.
    """
    _check_target(path, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        msg = f"the report cannot be written to {path}: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        msg = f"the report cannot be written to {path}: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    finally:
        temporary.unlink(missing_ok=True)


def _check_target(path: Path, *, force: bool) -> None:
    if force and not path.is_dir():
        return
    if path.is_dir():
        msg = f"{path} is a directory; name a file with --output FILE.html"
        raise UsageError(msg)
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            begins = file.read(_LOOKED_AT).decode("utf-8", errors="replace")
    except OSError as error:
        msg = f"{path} already exists and cannot be read: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    if GENERATOR not in begins:
        msg = (
            f"{path} already exists and is not a report of sweeper; name another file with "
            "--output, or replace it with --force"
        )
        raise UsageError(msg)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
