"""`Study`: a definition that can be run, resumed and asked for its results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from sweeper.api.continuing import CanBranch, asked_extension
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.loading import end_reading, load_definition
from sweeper.errors import StudyFileError, UnknownStudyError
from sweeper.records.results import StudyStatus
from sweeper.spec.arguments import with_named_arguments
from sweeper.support.paths import is_name
from sweeper.support.shown import shown_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sweeper.api.held_out import DataGiven
    from sweeper.api.models import StudyModels
    from sweeper.api.stored_study import StoredStudy
    from sweeper.records.evaluations import EvaluationRecord
    from sweeper.records.events import Listener
    from sweeper.records.lengths import Extension
    from sweeper.records.results import StudyResults
    from sweeper.spec.searching import Direction
    from sweeper.spec.settings import Settings


@with_named_arguments
class Study(StudyDefinition, CanBranch):
    """A comparison of hyperparameters; see `StudyDefinition` for its arguments.

    `run` keeps everything in a database: called again, it goes on where it was, bit for bit.

    Examples:
        >>> results = study.run(workers=2)  # again: it goes on, or has nothing left to do
    """

    def run(
        self,
        *,
        workers: int | None = None,
        trials: int | None = None,
        storage: str | None = None,
        runs_dir: str | Path | None = None,
        engine: str | None = None,
        isolation: str | None = None,
        listener: Listener | None = None,
        accept_changes: bool = False,
        engine_address: str | None = None,
        fail_fast: bool = False,
        gpus: str | None = None,
        trials_per_gpu: int | None = None,
        checkpoints_dir: str | Path | None = None,
        accept_inexact: bool = False,
        fresh: bool = False,
        epochs: int | Extension | None = None,
    ) -> StudyResults:
        """Run the study to its total and return its results.

        Args:
            workers: Trials side by side; the machine's cores by default. It changes no result.
            trials: A new total, instead of the definition's.
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.
            engine: Where workers run: ``"local"`` by default, ``"dask"`` or ``"ray"``.
            isolation: ``"auto"``, ``"fork"``, ``"spawn"``, or ``"inline"`` for a debugger.
            listener: Receives every event; by default progress goes to stderr, or a notebook's cell.
            accept_changes: Go on although the stored study was defined otherwise, or its
                factories' code was another. The change is recorded, trials finished before belong
                to the old definition and are ranked apart, and interrupted ones go on under the
                new one.
            engine_address: The cluster's, such as ``"tcp://10.0.0.1:8786"``; by default one is
                made on this machine.
            fail_fast: Stop with an error as soon as a trial fails; the others checkpoint.
            gpus: ``"all"``, or ids such as ``"0,1"``: every slot is bound to one of them.
            trials_per_gpu: Trials side by side on one GPU, its memory shared out; 1 by default.
            checkpoints_dir: Where checkpoints go, as a directory or ``"s3://bucket/prefix"``;
                below ``runs_dir`` by default.
            accept_inexact: Go on although an audit found a difference; it is recorded, and every
                reading verb says so.
            fresh: Begin a new study; one of this name that is stored is called ``name~1`` from
                then on (or the next free number), with its files.
            epochs: A larger number of epochs than the definition's; finished trials train on to
                it, too. See `Study.extend`.

        Raises:
            DefinitionChangedError: The stored study was defined otherwise, and a trial of it has
                a value or is on its way to one.
            ExactnessError: An audit found that a resumed trial goes on otherwise.
            Interrupted: SIGINT or SIGTERM; call again to go on.
            TrialError: A trial failed, and ``fail_fast`` was asked for; or the first trials all
                failed alike (`StudyDefinition.failing_alike`).
            SweeperError: The study cannot be run as it is defined, or the database or the disk
                failed. A failed trial raises nothing else: it is in the results.
        """
        end_reading()
        from sweeper.api.stored_study import drawable
        from sweeper.records.events import Doing
        from sweeper.run.options import RunRequest, WorkerOptions
        from sweeper.spec.settings import load_settings
        from sweeper.views.terminal.live import progress_listener

        settings = load_settings(
            storage=storage,
            runs_dir=None if runs_dir is None else Path(runs_dir),
            workers=workers,
            engine=engine,
            isolation=isolation,
            engine_address=engine_address,
            gpus=gpus,
            trials_per_gpu=trials_per_gpu,
            checkpoints=None if checkpoints_dir is None else str(checkpoints_dir),
        )
        options = WorkerOptions.resolved(
            settings, slots=settings.workers, fail_fast=fail_fast, accept_inexact=accept_inexact
        )

        def sweep(listener: Listener) -> StudyResults:
            from sweeper.run.run import run_sweep

            results = run_sweep(
                RunRequest(
                    options,
                    listener,
                    definition=self,
                    trials=trials,
                    engine=settings.engine,
                    engine_address=settings.engine_address,
                    accept_changes=accept_changes,
                    fresh=fresh,
                    extension=asked_extension(epochs),
                    resume_command="study.resume()",
                )
            )
            return drawable(results, _models(self.name, settings, definition=self))

        if listener is not None:
            return sweep(listener)
        import sys

        with progress_listener(sys.stderr) as progress:
            progress(Doing("importing TensorFlow and the study"))
            return sweep(progress)

    def resume(
        self,
        *,
        workers: int | None = None,
        storage: str | None = None,
        runs_dir: str | Path | None = None,
        engine: str | None = None,
        isolation: str | None = None,
        listener: Listener | None = None,
        engine_address: str | None = None,
        fail_fast: bool = False,
        gpus: str | None = None,
        trials_per_gpu: int | None = None,
        checkpoints_dir: str | Path | None = None,
        accept_inexact: bool = False,
        accept_changes: bool = False,
    ) -> StudyResults:
        """Go on with a study that was interrupted; the same as `run`, for the reader's sake.

        Args:
            workers: Trials side by side; the machine's cores by default.
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.
            engine: ``"local"`` by default, ``"dask"`` or ``"ray"``.
            isolation: ``"auto"`` by default, ``"fork"``, ``"spawn"`` or ``"inline"``.
            listener: Receives every event; by default progress goes to stderr, or a notebook's cell.
            engine_address: The cluster's; by default one is made on this machine.
            fail_fast: Stop with an error as soon as a trial fails; no by default.
            gpus: ``"all"``, or ids such as ``"0,1"``; none by default.
            trials_per_gpu: Trials side by side on one GPU; 1 by default.
            checkpoints_dir: Where checkpoints go; below ``runs_dir`` by default.
            accept_inexact: Go on although an audit found a difference; no by default.
            accept_changes: Go on although the definition or its code changed; no by default.

        Returns and raises what `run` does.
        """
        return self.run(
            workers=workers,
            storage=storage,
            runs_dir=runs_dir,
            engine=engine,
            isolation=isolation,
            listener=listener,
            engine_address=engine_address,
            fail_fast=fail_fast,
            gpus=gpus,
            trials_per_gpu=trials_per_gpu,
            checkpoints_dir=checkpoints_dir,
            accept_inexact=accept_inexact,
            accept_changes=accept_changes,
        )

    def extend(
        self,
        epochs: int,
        *,
        trials: Sequence[int] | None = None,
        best: int | None = None,
        **options: Any,
    ) -> StudyResults:
        """Have finished trials train on from where they ended, then run the study to its total.

        A trial that trains on from 5 epochs to 12 ends as one that trained 12 from its beginning,
        bit for bit; what it gave at 5 stays (`TrialRecord.lengths`). Interrupted, `resume` goes on
        with it.

        Args:
            epochs: Total number of epochs, finished ones included.
            trials: The numbers of the trials; None for the whole study: all complete trials, those
                that are interrupted, and those that have not begun.
            best: Instead of numbers, so many of the best trials.
            options: The arguments of `run`.

        Raises:
            UsageError: A trial has failed, or trained for more epochs; or trials are running.
            CheckpointError: A trial's last checkpoint is gone; those that it has are listed.
            ExactnessError: The study's code looks at the number of epochs, so that a longer trial
                is another one; the places are named, and ``accept_inexact`` goes on all the same.
            SweeperError: As for `run`.
        """
        return self.run(epochs=asked_extension(epochs, trials, best), **options)

    def results(
        self, *, storage: str | None = None, runs_dir: str | Path | None = None
    ) -> StudyResults:
        """Return the stored results of this study, without running anything.

        Args:
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.

        Raises:
            UnknownStudyError: The study has not been run yet.
            DatabaseUnavailableError: There is no such database.
        """
        from sweeper.api.stored_study import drawable
        from sweeper.db.database import Database
        from sweeper.db.repository import Repository
        from sweeper.spec.settings import load_settings

        settings = load_settings(
            storage=storage, runs_dir=None if runs_dir is None else Path(runs_dir)
        )
        with Database.open(settings.storage, create=False) as database:
            found = Repository(database).results(self.name)
        return drawable(found, _models(self.name, settings, definition=self))

    def evaluate(
        self,
        *,
        trial: int | None = None,
        data: DataGiven | None = None,
        metric: str | None = None,
        direction: Direction | None = None,
        workers: int | None = None,
        storage: str | None = None,
        runs_dir: str | Path | None = None,
        listener: Listener | None = None,
    ) -> tuple[EvaluationRecord, ...]:
        """Measure every kept checkpoint on held-out data; what each gives is stored, the best first.

        Args:
            trial: The number of the only trial to evaluate; None for every trial.
            data: A function ``trial -> Data``, a `Data`, or ``"FILE:NAME"`` of either: its ``test``
                is read, or else its ``validation``. None for ``Data(test=…)`` of the study's own
                data factory.
            metric: What to rank by, as the test step reports it; the study's objective without
                ``val_`` by default, of several the first.
            direction: Whether a larger ``metric`` is better; known for the objectives, and for
                metrics whose name tells.
            workers: Trials side by side; the machine's cores by default.
            storage: The database's URL, as in `run`.
            runs_dir: Where files are, as in `run`.
            listener: Receives the progress; by default it goes to standard error.

        Raises:
            UnknownStudyError: The study has not been run yet, or there is no such trial.
            UsageError: There are no such data; or nothing reported the metric, or its direction is
                not known.
            DefinitionChangedError: The study was defined otherwise when its trials ran.
            Interrupted: SIGINT or SIGTERM; what was measured is stored.
            SweeperError: Not one checkpoint could be evaluated.
        """
        end_reading()
        from sweeper.api.evaluating import EvaluationRequest, evaluate_study
        from sweeper.api.held_out import held_out_data
        from sweeper.run.options import WorkerOptions
        from sweeper.spec.settings import load_settings
        from sweeper.views.terminal.live import progress_listener

        settings = load_settings(
            storage=storage,
            runs_dir=None if runs_dir is None else Path(runs_dir),
            workers=workers,
        )
        options = WorkerOptions.resolved(settings, slots=settings.workers)

        def measure(listener: Listener) -> tuple[EvaluationRecord, ...]:
            return evaluate_study(
                EvaluationRequest(
                    study=self.name,
                    options=options,
                    listener=listener,
                    trial=trial,
                    data=held_out_data(data),
                    metric=metric,
                    direction=direction,
                    definition=self,
                )
            ).records

        if listener is not None:
            return measure(listener)
        import sys

        with progress_listener(sys.stderr) as progress:
            return measure(progress)

    def status(
        self, *, storage: str | None = None, runs_dir: str | Path | None = None
    ) -> StudyStatus:
        """Return how many trials are in each state.

        Args:
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.

        Raises:
            UnknownStudyError: The study has not been run yet.
            DatabaseUnavailableError: There is no such database.
        """
        return self.results(storage=storage, runs_dir=runs_dir).status


@overload
def load_study(target: os.PathLike[str]) -> Study: ...


@overload
def load_study(
    target: str,
    *,
    storage: str | None = None,
    runs_dir: str | Path | None = None,
    checkpoints_dir: str | Path | None = None,
    source: str | None = None,
) -> Study | StoredStudy: ...


def load_study(
    target: str | os.PathLike[str],
    *,
    storage: str | None = None,
    runs_dir: str | Path | None = None,
    checkpoints_dir: str | Path | None = None,
    source: str | None = None,
) -> Study | StoredStudy:
    """Return the study in ``FILE[:NAME]`` or ``package.module[:NAME]``, or the stored study of a name.

    Args:
        target: A file or a module, whose study is imported and can be run; or the name of a study
            in the database, of which everything is read without its code. What is both is the
            stored study; write ``FILE.py`` or ``module:NAME`` for the other.
        storage: Of a stored study: the database; by default ``sqlite:///runs/sweeper.db``.
        runs_dir: Where its files are; ``runs`` by default.
        checkpoints_dir: Where its checkpoints are; below ``runs_dir`` by default.
        source: ``FILE[:NAME]`` of its code, which `StoredStudy.definition` and the trials' models
            need, where that is not where it was when the study ran.

    Raises:
        StudyFileError: No such file or module, no study in it, or several and no NAME; and no
            study of that name is stored.
        StudyImportError: The module raised while it was imported.
        DatabaseUnavailableError: The database does not answer.

    Examples:
        >>> stored = sweeper.load_study("digits")
    """
    given = os.fspath(target)
    stored = isinstance(target, str) and is_name(given) and not Path(given).is_file()
    if stored or source is not None:
        from sweeper.api.stored_study import StoredStudy, is_stored
        from sweeper.spec.settings import load_settings

        settings = load_settings(
            storage=storage,
            runs_dir=None if runs_dir is None else Path(runs_dir),
            checkpoints=None if checkpoints_dir is None else str(checkpoints_dir),
        )
        if is_stored(given, settings.storage):
            return StoredStudy(given, _models(given, settings, source=source))
        if any(each is not None for each in (storage, runs_dir, checkpoints_dir, source)):
            msg = f"there is no study {given!r} in {shown_url(settings.storage)}"
            raise UnknownStudyError(msg)
    try:
        definition = load_definition(given)
    except StudyFileError as error:
        if not stored:
            raise
        msg = f"{error}; and there is no study of that name in {shown_url(settings.storage)}"
        raise StudyFileError(msg) from None
    if not isinstance(definition, Study):
        msg = f"{given} holds a bare StudyDefinition; write sweeper.Study(…) instead"
        raise StudyFileError(msg)
    return definition


def _models(
    name: str,
    settings: Settings,
    *,
    definition: StudyDefinition | None = None,
    source: str | None = None,
) -> StudyModels:
    from sweeper.api.models import StudyModels

    return StudyModels.of(settings, name, definition=definition, source=source)
