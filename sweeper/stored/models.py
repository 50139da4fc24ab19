"""Where the models of a study's trials are had: its database, its files, and its code.

The database and the files are looked at when a model is asked for; the code is imported from where
the stored study says that it is, unless this process has the definition already, or is given
another file.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.checkpoints.reading import load_checkpoint
from sweeper.declared.space import CategoricalChoice, Distribution
from sweeper.definition import StudyDefinition
from sweeper.errors import ParameterError
from sweeper.execution.launch.sources import load_source, recall_source, target_source
from sweeper.execution.protocol.study_source import StudySource
from sweeper.execution.trial.devices import import_tensorflow
from sweeper.export.code_changes import check_code
from sweeper.export.formats import check_format
from sweeper.export.report import Exported
from sweeper.export.target import check_target
from sweeper.paths import Location, RunPaths, absolute_location
from sweeper.records.model_source import At
from sweeper.results import TrialRecord
from sweeper.storage.database import Database
from sweeper.storage.repository import Repository, StudyRow
from sweeper.stored.choosing import ChosenModel, TrialFiles, newest_of, origin_of
from sweeper.support.tensorflow_start import look_for_gpus

if TYPE_CHECKING:
    import keras

    from sweeper.export.rebuilding import ModelBuilder
    from sweeper.settings import Settings

_GONE = (
    "which is gone; give its new place: load_study(name, source='FILE[:NAME]'), or "
    "`sweeper export … --source FILE[:NAME]`"
)


@dataclass(frozen=True)
class StoredModel:
    """One trial's model, found but not built.

    Attributes:
        row: The study's, with its code.
        chosen: The variables, and the checkpoints around them.
        directory: `Trial.directory`, whether or not it is there.
    """

    row: StudyRow
    trial: TrialRecord
    chosen: ChosenModel
    directory: Path

    def value_of(self, name: str) -> CategoricalChoice:
        """The trial's parameter.

        Raises:
            ParameterError: It never asked for it.
        """
        params = self.trial.params
        if name not in params:
            has = ", ".join(map(repr, sorted(params))) or "none"
            msg = (
                f"the model factory asks for parameter {name!r}, which trial {self.trial.number} "
                f"never asked for (it has {has}); its code has changed since"
            )
            raise ParameterError(msg)
        return params[name]

    def card(self, at: At) -> dict[str, Any]:
        """What the database knows of it."""
        row, trial, origin = self.row, self.trial, self.chosen.loaded.origin
        return {
            "study": row.name,
            "trial": trial.number,
            "state": trial.state,
            "at": at,
            "objective": row.objective,
            "direction": row.direction,
            "value": trial.value,
            "parameters": dict(trial.params),
            "seed": trial.seed,
            "definition": row.fingerprint if origin is None else origin.definition,
            "code": trial.code,
        }


@dataclass(frozen=True)
class StudyModels:
    """A `ModelSource` for the trials of one study.

    Args:
        study: Its name.
        storage: The database's URL.
        runs_dir: Where its files are.
        checkpoints: Where its checkpoints are, if not below that.
        definition: The study, where this process defined it.
        source: ``FILE[:NAME]``, where its code is not where it was.
    """

    study: str
    storage: str
    runs_dir: Path
    checkpoints: Location | None = None
    definition: StudyDefinition | None = field(default=None, repr=False, compare=False)
    source: str | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        study: str,
        *,
        definition: StudyDefinition | None = None,
        source: str | None = None,
    ) -> StudyModels:
        """Return the models of the study stored where ``settings`` say."""
        return cls(
            study,
            settings.storage,
            settings.runs_dir.absolute(),
            absolute_location(settings.checkpoints_location),
            definition=definition,
            source=source,
        )

    def load_model(self, number: int, at: At, *, accept_changes: bool) -> keras.Model:
        """See `HasModel.load_model`."""
        found = self.find(number, at)
        with self._builder(found, accept_changes=accept_changes) as builder:
            return builder.build(found.chosen.loaded)

    def export(
        self,
        number: int,
        path: str | Path,
        format: str,  # noqa: A002 - as the command line calls it
        at: At,
        *,
        accept_changes: bool,
        force: bool = False,
        name: str = "ckpt",
        max_to_keep: int | None = None,
    ) -> Exported:
        """See `HasModel.export`."""
        target = Path(path).absolute()
        check_format(format, str(target))
        check_target(target, force=force)
        found = self.find(number, at)
        with self._builder(found, accept_changes=accept_changes) as builder:
            from sweeper.export.writing import ExportJob, export_model

            training = newest_of(found.chosen.training, max_to_keep)
            card = export_model(
                builder,
                ExportJob(
                    form=format,
                    path=target,
                    loaded=found.chosen.loaded,
                    training=[load_checkpoint(each.path) for each in training],
                    card=found.card(at),
                    force=force,
                    name=name,
                ),
            )
        return Exported(str(target), card)

    def find(self, number: int, at: At) -> StoredModel:
        """The model's variables, read and verified; nothing of the study's code is imported.

        Raises:
            UnknownStudyError: There is no such study or trial.
            CheckpointError: The trial keeps no such model; what it keeps is listed.
        """
        paths = RunPaths(self.runs_dir.absolute(), self.study, self.checkpoints)
        with Database.open(self.storage, create=False) as database:
            repository = Repository(database)
            row = repository.study(self.study)
            trial = repository.trial(self.study, number)
        files = TrialFiles.of(trial, paths, origin_of(row.name, row.identity, trial, row.seed))
        chosen = files.choose(at, row.objective, row.direction)
        return StoredModel(row, trial, chosen, paths.trial_files(number))

    def code_source(self, row: StudyRow) -> StudySource:
        """Where the study's code is.

        Raises:
            StudyFileError: It is gone, or another file by now; the message says how to give it.
        """
        if self.source is not None:
            return target_source(self.source, self.study.partition("~")[0])
        return recall_source(self.study, row.source, _GONE, row.code)

    def load_definition(self, row: StudyRow) -> StudyDefinition:
        """The study's definition, imported unless this process has it.

        Raises:
            StudyFileError, StudyImportError: It is not to be had.
        """
        if self.definition is not None:
            return self.definition
        return load_source(self.code_source(row))

    @contextmanager
    def _builder(self, found: StoredModel, *, accept_changes: bool) -> Iterator[ModelBuilder]:
        import_tensorflow()
        look_for_gpus()
        from sweeper.export.rebuilding import ModelBuilder, TrialIdentity

        definition = self.load_definition(found.row)
        check_code(
            self.study,
            found.trial.number,
            fingerprint=found.row.fingerprint,
            stored=found.row.code,
            now=definition.code(),
            origin=found.chosen.loaded.origin,
            accept=accept_changes,
            notice=_warn,
        )

        def ask(name: str, distribution: Distribution) -> CategoricalChoice:
            del distribution
            return found.value_of(name)

        with _directory(found.directory) as directory:
            parent = found.trial.parent
            identity = TrialIdentity(
                self.study,
                found.trial.number,
                found.row.seed,
                directory,
                seeded_as=None if parent is None else parent.seeded_as,
            )
            yield ModelBuilder(definition, identity, ask, _warn)


@contextmanager
def _directory(own: Path) -> Iterator[Path]:
    """The trial's own directory; an empty one of its own where this machine has none."""
    if own.is_dir():
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="sweeper-") as directory:
        yield Path(directory)


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)
