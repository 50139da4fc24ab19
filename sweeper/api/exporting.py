"""`sweeper export`: a trial's model, built and written in a separate process, as trials run.

That process imports the study as a trial's process does: with the same hash seed, threads, kernels
and states of generators. The calling process reads the database and the checkpoints, and imports
neither TensorFlow nor the study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.api.models import StoredModel, StudyModels, newest_of
from sweeper.definition.definition import StudySettings
from sweeper.errors import ExecutionError, ExportError, StudyFileError
from sweeper.models.exported import Exported, check_code, check_format, check_target
from sweeper.records.model_source import At
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.trial_process import ExitStatus, Launcher, carry_out, scratch_paths
from sweeper.run.protocol.messages import (
    ExportOrder,
    Failed,
    Message,
    ModelExported,
    Warned,
    assignment_of,
)


@dataclass(frozen=True)
class ExportRequest:
    """Request to export a trial's model.

    Attributes:
        models: The models of the study.
        number: Number of the trial.
        at: The model: end, best, or a step.
        format: Name of the export format.
        path: The file or directory to write.
        force: Whether an existing file is replaced. name, max_to_keep: See `HasModel.export`.
        accept_changes: Export although the code has changed.
        isolation: ``"auto"``, ``"fork"`` or ``"spawn"``.
        notice: Called with each notice for the user.
    """

    models: StudyModels
    number: int
    at: At
    format: str
    path: Path
    force: bool
    name: str
    max_to_keep: int | None
    accept_changes: bool
    isolation: str
    notice: Callable[[str], None]


def export_apart(request: ExportRequest) -> Exported:
    """Write a trial's model, in a separate process."""
    path = request.path.absolute()
    check_format(request.format, str(path))
    check_target(path, force=request.force)
    models = request.models
    found = models.find(request.number, request.at)
    request.notice(f"importing TensorFlow and the study {models.study} ...")
    source = models.code_source(found.row)
    with open_launcher(source, request.isolation, request.notice, "export") as (launcher, loaded):
        check_code(
            models.study,
            request.number,
            fingerprint=found.row.fingerprint,
            stored=found.row.code,
            now=loaded.code,
            origin=found.loaded.origin,
            accept=request.accept_changes,
            notice=request.notice,
        )
        if loaded.settings.name not in (models.study, models.study.partition("~")[0]):
            msg = f"{models.source} holds study {loaded.settings.name!r}, not {models.study!r}"
            raise StudyFileError(msg)
        request.notice(f"building the model of trial {request.number} and writing {path} ...")
        card = _converse(launcher, request, found, path)
    return Exported(str(path), card)


def _converse(
    launcher: Launcher, request: ExportRequest, found: StoredModel, path: Path
) -> dict[str, object]:
    settings = StudySettings.from_json({**found.row.definition, "trials": found.row.target})
    training = newest_of(found.training, request.max_to_keep)
    order = ExportOrder(
        format=request.format,
        path=str(path),
        checkpoint=str(found.loaded.path),
        training=tuple(str(each.path) for each in training),
        card=found.card(request.at),
        force=request.force,
        name=request.name,
    )
    number = request.number

    def receive(message: Message) -> None:
        if isinstance(message, Warned):
            request.notice(message.message)

    with scratch_paths(settings.name, number, "export") as paths:
        files = found.directory if found.directory.is_dir() else paths.trial_files(number)
        files.mkdir(parents=True, exist_ok=True)
        assignment = replace(
            assignment_of(settings, paths, number, 1), files=str(files), order=order
        )
        end = carry_out(
            launcher,
            assignment,
            lambda question: found.value_of(question.name),
            receive,
        )
    if isinstance(end, ModelExported):
        return end.card
    if isinstance(end, Failed):
        if end.traceback:
            request.notice(end.traceback)
        raise ExportError(end.error)
    how = end.describe() if isinstance(end, ExitStatus) else "ended"
    msg = f"the process that was to build the model of trial {number} {how}; nothing was written"
    raise ExecutionError(msg)
