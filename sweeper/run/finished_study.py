"""A run of a study of which nothing is left to do, known before its code and TensorFlow are imported.

The code is taken as unchanged only if its file has the text from which the study was stored, and that
text alone decides what the study is. In every other case the run imports the study and compares it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.db.peek import may_be_finished
from sweeper.declarations.repeating import Repeating
from sweeper.definition.declared import DeclaredStudy, DeclaringFile
from sweeper.definition.loading import split_target
from sweeper.records.events import StudyOpened
from sweeper.records.results import StudyResults, StudyStatus
from sweeper.run.launch.sources import describe_source, recall_source, target_source
from sweeper.run.options import RunRequest
from sweeper.run.protocol.messages import StudySource
from sweeper.support.shown import shown_url

if TYPE_CHECKING:
    from sweeper.db.repository import StudyRow


def finished_study(request: RunRequest) -> tuple[StudyOpened, StudyResults] | None:
    """Return the first event and the results of a run that has nothing to do; None if that is not certain.

    Raises:
        StudyFileError: The file of a study to resume is missing or differs.
        DatabaseUnavailableError: The database cannot be reached.
    """
    if request.extension or request.confirm or request.fresh or request.accept_changes:
        return None
    name = request.study
    if name is None:
        declared = _declared(target_source(request.source or ""), resumed=False)
        name = None if declared is None else declared.literals.get("name")
    if name is None or not may_be_finished(request.options.storage, name):
        return None
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with Database.open(request.options.storage, create=False) as database:
        repository = Repository(database)
        if request.study is None and name not in repository.study_names():
            return None
        row = repository.study(name)
        status = repository.status(name)
        if not (_is_unchanged(row, request) and _is_over(status)):
            return None
        results = StudyResults(status, repository.trials(name))
    opened = StudyOpened(
        status=status,
        workers=request.options.slots or 1,
        storage=shown_url(request.options.storage),
        repeating=Repeating.of(row.definition),
    )
    return opened, results


def _is_unchanged(row: StudyRow, request: RunRequest) -> bool:
    """Return whether the study's file has certainly the stored definition, and the run its total."""
    if row.definition.get("warm_start") or row.definition.get("confirm"):
        # The one has a file of weights, whose content counts, too; the other a file of another study.
        return False
    stored_source = row.source or {}
    resumed = request.study is not None
    if resumed:
        source = recall_source(row.name, stored_source)
    else:
        source = target_source(request.source or "")
    described = describe_source(source)
    declared = _declared(source, resumed=resumed)
    if declared is None or declared.literals.get("name") != row.name:
        return False
    total = declared.literals.get("trials")
    return (
        all(
            described[part] == stored_source.get(part)
            for part in ("how", "location", "name", "meaning")
        )
        and request.trials in (None, row.target)
        and isinstance(total, int)
        # A resume reports it if the file's total is larger, and a run also if it is smaller.
        and (total == row.target or (resumed and total < row.target))
    )


def _is_over(status: StudyStatus) -> bool:
    return (
        status.is_over
        and not (status.running or status.interrupted or status.paused)
        and status.exactness.difference is None
    )


def _declared(source: StudySource, *, resumed: bool) -> DeclaredStudy | None:
    """Return the only study of a file whose text alone decides what it is.

    A study that is ``resumed`` may have data that the file computes: no trial is left that would read them.
    """
    location, variable = split_target(source.target)
    if not Path(location).is_file():
        return None
    file = DeclaringFile(Path(location))
    studies = [*file.studies()]
    if len(studies) != 1 or variable not in (None, studies[0].variable):
        return None
    whole = file.is_whole((str(Path.cwd()), *source.path), computes=resumed)
    return studies[0] if whole else None
