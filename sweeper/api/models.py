"""Models of a stored study's trials: selection and loading.

The database and the files are read when a model is requested. The code is imported from the path
that the database has, unless this process already has the definition or another file is given.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.checkpoint.end import read_end
from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.reading import load_checkpoint, read_kept
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow
from sweeper.declarations.checkpointing import KeptCheckpoint, best_checkpoint
from sweeper.declarations.repeating import Repeating
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.definition.definition import StudyDefinition
from sweeper.errors import CheckpointError, ForeignCheckpointError, ParameterError, UsageError
from sweeper.models.exported import Exported, check_code, check_format, check_target
from sweeper.records.events import Listener
from sweeper.records.model_source import At, ExportOptions, Verified
from sweeper.records.printing import counted
from sweeper.records.results import TrialRecord
from sweeper.run.launch.sources import load_source, recall_source, source_of, target_source
from sweeper.run.protocol.messages import StudySource
from sweeper.run.worker.checkpoints import locate
from sweeper.support.paths import (
    Location,
    RunPaths,
    absolute_location,
    attempt_of,
    end_model_beside,
    parse_location,
)
from sweeper.support.tensorflow_start import import_tensorflow, look_for_gpus

if TYPE_CHECKING:
    import keras

    from sweeper.checks.verify import StudyVerification
    from sweeper.declarations.settings import Settings
    from sweeper.models.rebuilding import ModelBuilder

_WITHOUT_END = {
    "pruned": "was pruned before the end of its training",
    "failed": "failed before the end of its training",
}

_NEWEST = 1 << 30
"""Number of the attempt of a path that names none: it counts as newer than all attempts."""

ModelCheckpoints = tuple[LoadedCheckpoint, tuple[KeptCheckpoint, ...]]
"""Variables of a stored model, read and verified, and the trial's kept checkpoints up to it, oldest first: the
last one has the optimizer's state at the same step."""


def choose_model(row: StudyRow, trial: TrialRecord, paths: RunPaths, at: At) -> ModelCheckpoints:
    """Return the model that ``at`` selects: ``"end"``, ``"best"`` or a step.

    Its files are looked up at the database's paths and below the present runs directory.
    """
    origin = Origin(row.name, row.identity, trial.number, row.seed)
    located = [parse_location(path) for path in locate(trial, paths).known]
    ignored = trial.ignore_checkpoints_through
    current_paths = [path for path in located if (attempt_of(path) or _NEWEST) > ignored]
    by_step = {c.step: c for c in read_kept((), current_paths, origin=origin) if c.good}
    checkpoints = tuple(by_step[step] for step in sorted(by_step))
    if at == "end":
        if trial.state != "complete":
            unfinished = f"is {trial.state}, so its training has not ended"
            raise _missing(trial, checkpoints, _WITHOUT_END.get(trial.state, unfinished))
        ends = [
            paths.end_model(trial.number),
            *(end_model_beside(path) for path in reversed(current_paths)),
        ]
        return _end_model(trial, checkpoints, list(dict.fromkeys(ends)), origin)
    if at == "best":
        checkpoint = best_checkpoint(checkpoints, row.objective, row.direction)
        reason = f"has no checkpoint with the objective {row.objective!r}"
    elif isinstance(at, bool) or not isinstance(at, int):
        raise UsageError(f"at={at!r}; it is 'end', 'best', or the step of a kept checkpoint")
    else:
        checkpoint = by_step.get(at)
        reason = f"has no checkpoint of step {at}"
    if checkpoint is None:
        raise _missing(trial, checkpoints, reason)
    training = tuple(candidate for candidate in checkpoints if candidate.step <= checkpoint.step)
    return load_checkpoint(checkpoint.path), training


def _end_model(
    trial: TrialRecord,
    checkpoints: tuple[KeptCheckpoint, ...],
    ends: Sequence[Location],
    origin: Origin,
) -> ModelCheckpoints:
    loaded = read_end(ends, [checkpoint.path for checkpoint in checkpoints])
    if loaded is None or not checkpoints:
        raise _missing(
            trial, checkpoints, f"has no stored model at the end ({ends[0]} was removed)"
        )
    foreign = [] if loaded.origin is None else origin.differences(loaded.origin)
    if foreign:
        raise ForeignCheckpointError(
            f"the model at the end in {loaded.path} cannot be used: {'; '.join(foreign)}. "
            f"Name the runs directory of study {trial.study!r} (--runs-dir, runs_dir=…)"
        )
    return loaded, checkpoints


def _missing(
    trial: TrialRecord, checkpoints: Sequence[KeptCheckpoint], reason: str
) -> CheckpointError:
    advice = "it has no kept checkpoint to load instead"
    if checkpoints:
        steps = ", ".join(f"{c.step} ({counted(c.epoch, 'epoch')})" for c in checkpoints)
        advice = (
            f"it keeps checkpoints at the steps {steps}: at={checkpoints[-1].step} is the newest"
        )
    return CheckpointError(f"trial {trial.number} of study {trial.study!r} {reason}; {advice}")


_GONE = (
    "which is gone; give its new place: load_study(name, source='FILE[:NAME]'), or "
    "`sweeper export … --source FILE[:NAME]`"
)


@dataclass(frozen=True)
class StoredModel:
    """One trial's model, found but not built; for ``loaded`` and ``training``, see `ModelCheckpoints`.

    ``directory`` is `Trial.directory`, whether or not it is there.
    """

    row: StudyRow
    trial: TrialRecord
    loaded: LoadedCheckpoint
    training: tuple[KeptCheckpoint, ...]
    directory: Path

    def value_of(self, name: str) -> CategoricalChoice:
        """Return the trial's parameter; refuse one that the trial does not have."""
        params = self.trial.params
        if name not in params:
            has = ", ".join(map(repr, sorted(params))) or "none"
            raise ParameterError(
                f"the model factory asks for parameter {name!r}, which trial {self.trial.number} "
                f"does not have (it has {has}); the factory's code has changed since"
            )
        return params[name]

    def newest(self, count: int | None) -> tuple[KeptCheckpoint, ...]:
        """Return the newest ``count`` checkpoints, oldest first; by default only the last."""
        return self.training[-(count or 1) :]

    def card(self, at: At) -> dict[str, Any]:
        """Return the content of an export's description that the database has."""
        row = self.row
        trial = self.trial
        origin = self.loaded.origin
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


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)


@dataclass(frozen=True)
class StudyModels:
    """A `ModelSource` for the trials of one study.

    Args:
        study: Its name.
        storage: The database's URL.
        runs_dir: Where its files are.
        checkpoints: The directory or URL of its checkpoints, if not below ``runs_dir``.
        definition: The study, if this process defined it.
        source: ``FILE[:NAME]``, if its code has moved.
        notify: Receives notices; by default warnings are issued.
    """

    study: str
    storage: str
    runs_dir: Path
    checkpoints: Location | None = None
    definition: StudyDefinition | None = field(default=None, repr=False, compare=False)
    source: str | None = None
    notify: Callable[[str], None] = field(default=_warn, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        settings: Settings,
        study: str,
        *,
        definition: StudyDefinition | None = None,
        source: str | None = None,
        notify: Callable[[str], None] = _warn,
    ) -> StudyModels:
        return cls(
            study,
            settings.storage,
            settings.runs_dir.absolute(),
            absolute_location(settings.checkpoints_location),
            definition=definition,
            source=source,
            notify=notify,
        )

    def load_model(self, number: int, at: At, *, accept_changes: bool) -> keras.Model:
        """See `HasModel.load_model`."""
        model = self.find(number, at)
        with self._builder(model, accept_changes=accept_changes) as builder:
            last = model.training[-1]
            loaded = model.loaded
            training = loaded if loaded.path == last.path else load_checkpoint(last.path)
            return builder.build(loaded, training)

    def ensemble(self, numbers: Sequence[int], path: str | PathLike[str] | None) -> keras.Model:
        """See `TopTrials.ensemble`."""
        loaded = {n: self.load_model(n, "end", accept_changes=False) for n in numbers}
        from sweeper.models.ensembles import mean_of_models

        return mean_of_models(loaded, path)

    def export(self, number: int, options: ExportOptions) -> Exported:
        """See `HasModel.export`."""
        check_format(options.format, str(options.path))
        check_target(options.path, force=options.force)
        model = self.find(number, options.at)
        with self._builder(model, accept_changes=options.accept_changes) as builder:
            from sweeper.models.writing import ExportJob, export_model

            training = model.newest(options.max_to_keep)
            job = ExportJob(
                options=options,
                loaded=model.loaded,
                training=[load_checkpoint(checkpoint.path) for checkpoint in training],
                card=model.card(options.at),
            )
            return Exported(str(options.path), export_model(builder, job))

    def verify(
        self,
        which: Verified,
        *,
        interrupt: bool = False,
        seed: int | None = None,
        workers: int | None = None,
        listener: Listener | None = None,
    ) -> StudyVerification:
        """See `sweeper.Study.verify`; it does not import the study into this process."""
        import secrets

        from sweeper.checks.verify import VerifyRequest, verify_study
        from sweeper.declarations.settings import load_settings
        from sweeper.run.options import WorkerOptions
        from sweeper.views.terminal.live import listening

        source = None
        if self.definition is not None:
            source = source_of(self.definition)
        elif self.source is not None:
            source = target_source(self.source, self.study)
        slots = load_settings(workers=workers).workers
        options = WorkerOptions(
            slots, storage=self.storage, runs_dir=self.runs_dir, checkpoints=self.checkpoints
        )
        with listening(listener) as progress:
            return verify_study(
                VerifyRequest(
                    study=self.study,
                    which=which,
                    interrupt=interrupt,
                    seed=secrets.randbelow(1 << 32) if seed is None else seed,
                    options=options,
                    listener=progress,
                    source=source,
                )
            )

    def find(self, number: int, at: At) -> StoredModel:
        """Return the model's variables, read and verified, without importing the study's code."""
        paths = RunPaths(self.runs_dir.absolute(), self.study, self.checkpoints)
        with Database.open(self.storage, create=False) as database:
            repository = Repository(database)
            row = repository.study(self.study)
            trial = repository.trial(self.study, number)
            if trial.reuses is not None:
                trial = repository.trial(self.study, trial.reuses)
        loaded, training = choose_model(row, trial, paths, at)
        return StoredModel(row, trial, loaded, training, paths.trial_files(trial.number))

    def code_source(self, row: StudyRow) -> StudySource:
        if self.source is not None:
            return target_source(self.source, self.study.partition("~")[0])
        return recall_source(self.study, row.source, _GONE)

    def load_definition(self, row: StudyRow) -> StudyDefinition:
        """Return the study's definition, imported unless this process has it."""
        if self.definition is not None:
            return self.definition
        return load_source(self.code_source(row))

    @contextmanager
    def _builder(self, model: StoredModel, *, accept_changes: bool) -> Iterator[ModelBuilder]:
        import_tensorflow()
        look_for_gpus()
        from sweeper.models.rebuilding import ModelBuilder
        from sweeper.train.randomness.seeds import TrialSeeds

        definition = self.load_definition(model.row)
        check_code(
            self.study,
            model.trial.number,
            fingerprint=model.row.fingerprint,
            stored=model.row.code,
            current=definition.code(),
            origin=model.loaded.origin,
            accept=accept_changes,
            notify=self.notify,
        )

        def ask(name: str, distribution: Distribution) -> CategoricalChoice:
            del distribution
            return model.value_of(name)

        with _directory(model.directory) as directory:
            position = Repeating.of(model.row.definition).seed_position(
                model.trial.number, model.trial.proposals
            )
            number = model.trial.number
            seeds = TrialSeeds(model.row.seed, position)
            yield ModelBuilder(definition, number, seeds, directory, ask, self.notify)


@contextmanager
def _directory(trial_directory: Path) -> Iterator[Path]:
    """Return the trial's directory; a temporary empty one if this machine has none."""
    if trial_directory.is_dir():
        yield trial_directory
        return
    with tempfile.TemporaryDirectory(prefix="sweeper-") as directory:
        yield Path(directory)
