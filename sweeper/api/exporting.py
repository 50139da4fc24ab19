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
    notify: Callable[[str], None],
) -> Exported:
    """Write the model of trial ``number`` in a separate process."""
    model = models.find_to_export(number, options)
    notify(f"importing TensorFlow and the study {models.study} ...")
    source = models.code_source(model.row)
    with open_launcher(source, isolation, notify, "export") as (launcher, loaded):
        check_code(
            models.study,
            number,
            fingerprint=model.row.fingerprint,
            stored=model.row.code,
            current=loaded.code,
            origin=model.loaded.origin,
            accept=options.accept_changes,
            notify=notify,
        )
        if loaded.settings.name not in (models.study, models.study.partition("~")[0]):
            msg = f"{models.source} holds study {loaded.settings.name!r}, not {models.study!r}"
            raise StudyFileError(msg)
        notify(f"building the model of trial {number} and writing {options.path} ...")
        settings = StudySettings.from_json({**model.row.definition, "trials": model.row.target})
        order = ExportOrder(
            format=options.format,
            path=str(options.path),
            checkpoint=str(model.loaded.path),
            training=tuple(
                str(checkpoint.path) for checkpoint in model.newest(options.max_to_keep)
            ),
            card=model.card(options.at),
            force=options.force,
            name=options.name,
        )

        def receive(message: Message) -> None:
            if isinstance(message, Warned):
                notify(message.message)

        with scratch_paths(settings.name, number, "export") as paths:
            files = model.directory if model.directory.is_dir() else paths.trial_files(number)
            files.mkdir(parents=True, exist_ok=True)
            assigned = assignment_of(settings, paths, number, 1, proposals=model.trial.proposals)
            end = run_to_end(
                launcher,
                replace(assigned, files=str(files), order=order),
                lambda question: model.value_of(question.name),
                receive,
            )
    if isinstance(end, ModelExported):
        return Exported(str(options.path), end.card)
    if isinstance(end, Failed):
        if end.traceback:
            notify(end.traceback)
        raise ExportError(end.error)
    ending = end.describe() if isinstance(end, ExitStatus) else "ended"
    msg = f"the process that was to build the model of trial {number} {ending}; nothing was written"
    raise ExecutionError(msg)
