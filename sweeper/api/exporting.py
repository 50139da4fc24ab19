"""`sweeper export`: a trial's model, built and written in a separate process, as trials run.

That process imports the study as a trial's process does: with the same hash seed, threads, kernels
and states of generators. The calling process reads the database and the checkpoints, and imports
neither TensorFlow nor the study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sweeper.api.models import StudyModels
from sweeper.definition.definition import StudySettings
from sweeper.errors import ExecutionError, ExportError, StudyFileError
from sweeper.models.exported import Exported, check_code
from sweeper.records.model_source import ExportOptions
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.trial_process import ExitStatus, run_to_end, scratch_paths
from sweeper.run.protocol.messages import (
    ExportOrder,
    Failed,
    Message,
    ModelExported,
    Warned,
    assignment_of,
)


def export_apart(
    models: StudyModels,
    number: int,
    options: ExportOptions,
    isolation: str,
    notice: Callable[[str], None],
) -> Exported:
    """Write the model of trial ``number`` in a separate process."""
    found = models.find_to_export(number, options)
    notice(f"importing TensorFlow and the study {models.study} ...")
    source = models.code_source(found.row)
    with open_launcher(source, isolation, notice, "export") as (launcher, loaded):
        check_code(
            models.study,
            number,
            fingerprint=found.row.fingerprint,
            stored=found.row.code,
            now=loaded.code,
            origin=found.loaded.origin,
            accept=options.accept_changes,
            notice=notice,
        )
        if loaded.settings.name not in (models.study, models.study.partition("~")[0]):
            msg = f"{models.source} holds study {loaded.settings.name!r}, not {models.study!r}"
            raise StudyFileError(msg)
        notice(f"building the model of trial {number} and writing {options.path} ...")
        settings = StudySettings.from_json({**found.row.definition, "trials": found.row.target})
        order = ExportOrder(
            format=options.format,
            path=str(options.path),
            checkpoint=str(found.loaded.path),
            training=tuple(str(each.path) for each in found.newest(options.max_to_keep)),
            card=found.card(options.at),
            force=options.force,
            name=options.name,
        )

        def receive(message: Message) -> None:
            if isinstance(message, Warned):
                notice(message.message)

        with scratch_paths(settings.name, number, "export") as paths:
            files = found.directory if found.directory.is_dir() else paths.trial_files(number)
            files.mkdir(parents=True, exist_ok=True)
            assigned = assignment_of(settings, paths, number, 1, proposals=found.trial.proposals)
            end = run_to_end(
                launcher,
                replace(assigned, files=str(files), order=order),
                lambda question: found.value_of(question.name),
                receive,
            )
    if isinstance(end, ModelExported):
        return Exported(str(options.path), end.card)
    if isinstance(end, Failed):
        if end.traceback:
            notice(end.traceback)
        raise ExportError(end.error)
    how = end.describe() if isinstance(end, ExitStatus) else "ended"
    msg = f"the process that was to build the model of trial {number} {how}; nothing was written"
    raise ExecutionError(msg)
