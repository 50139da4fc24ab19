"""`Study`: a definition that can be run and resumed, and that returns its results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from sweeper.declarations.arguments import checked_whole, with_named_arguments
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.loading import end_reading, load_definition
from sweeper.errors import Interrupted, StudyFileError, UnknownStudyError, UsageError
from sweeper.records.lengths import Extension
from sweeper.records.results import StudyStatus
from sweeper.support.paths import is_name, roots_of
from sweeper.support.shown import shown_url

if TYPE_CHECKING:
    from sweeper.api.evaluating import DataGiven
    from sweeper.api.models import StudyModels
    from sweeper.api.stored_study import StoredStudy
    from sweeper.checks.check import CheckReport
    from sweeper.checks.verify import StudyVerification
    from sweeper.declarations.repeating import ConfirmRequest
    from sweeper.declarations.searching import Direction
    from sweeper.declarations.settings import Settings
    from sweeper.records.evaluations import EvaluationRecord
    from sweeper.records.events import Listener
    from sweeper.records.results import StudyResults


@with_named_arguments
class Study(StudyDefinition):
    """A comparison of hyperparameters; see `StudyDefinition` for its arguments.

    `run` stores everything in a database: called again, it resumes, bit for bit.

    Examples:
        >>> results = study.run(workers=2)  # again: it continues, or nothing is left to do
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
        confirm: ConfirmRequest | None = None,
    ) -> StudyResults:
        """Run the study to its total and return its results.

        Args:
            workers: Parallel trials; by default one for each core. Results do not depend on it.
            trials: A new total, instead of the definition's.
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.
            engine: Where workers run: ``"local"`` by default, ``"dask"`` or ``"ray"``.
            isolation: ``"auto"``, ``"fork"``, ``"spawn"``, or ``"inline"`` for a debugger.
            listener: Receives every event; by default progress goes to stderr, or a notebook's cell.
            accept_changes: Run although the definition or the factories' code differs from the
                stored study. The change is recorded, earlier trials belong to the old definition and
                are ranked separately, and interrupted ones resume under the new one.
            engine_address: The cluster's address, such as ``"tcp://10.0.0.1:8786"``; by default a
                cluster is started on this machine.
            fail_fast: Stop with an error as soon as a trial fails; the others checkpoint.
            gpus: ``"all"``, or ids such as ``"0,1"``: every slot is bound to one of them.
            trials_per_gpu: Parallel trials on one GPU, which share its memory; 1 by default.
            checkpoints_dir: Copy of checkpoints, a directory or ``"s3://bucket/prefix"``; below
                ``runs_dir`` by default.
            accept_inexact: Run although an audit found a difference; it is recorded, and every
                command that reads the study says so.
            fresh: Start a new study; an existing one of this name is renamed to ``name~1`` (or the
                next free number), with its files.
            epochs: A larger number of epochs than the definition's; finished trials are extended to
                it. See `Study.extend`.
            confirm: Train leading configurations again instead; see `Study.confirm`.

        Raises:
            DefinitionChangedError: The definition differs from the stored study, of which a trial
                has a value or is in progress.
            ExactnessError: An audit found that a resumed trial differs from an uninterrupted one.
            Interrupted: SIGINT or SIGTERM was received; call again to resume.
            TrialError: A trial failed with ``fail_fast``, or the first trials all failed with the
                same error (`StudyDefinition.failing_alike`).
            SweeperError: The definition is not valid, or the database or the disk failed. A failed
                trial raises no other error: it is in the results.
        """
        end_reading()
        from sweeper.checks.disk import put_back
        from sweeper.records.events import Doing, Notice
        from sweeper.run.options import RunRequest, WorkerOptions

        settings = _settings(
            storage,
            runs_dir,
            checkpoints_dir,
            workers=workers,
            engine=engine,
            isolation=isolation,
            engine_address=engine_address,
            gpus=gpus,
            trials_per_gpu=trials_per_gpu,
        )
        options = WorkerOptions.resolved(
            settings, slots=settings.workers, fail_fast=fail_fast, accept_inexact=accept_inexact
        )

        from sweeper.views.terminal.live import listening

        with listening(listener, Doing("importing TensorFlow and the study")) as progress:
            put_back(roots_of(""), lambda text: progress(Notice(text)))
            from sweeper.run.run import run_sweep

            again = "study.resume()" if confirm is None else "study.confirm()"
            request = RunRequest(
                options,
                progress,
                definition=self,
                trials=trials,
                engine=settings.engine,
                engine_address=settings.engine_address,
                accept_changes=accept_changes,
                fresh=fresh,
                extension=asked_extension(epochs),
                confirm=confirm,
                resume_command=again,
            )
            try:
                results = run_sweep(request)
            except Interrupted as error:
                error.add_note(f"To continue, call {again}, or run the script again.")
                raise
        return results.with_models(_models(results.status.study, settings, definition=self))

    def resume(self, **options: Any) -> StudyResults:
        """Resume an interrupted study; a synonym of `run`.

        Args:
            options: The arguments of `run`.

        Returns and raises what `run` does.
        """
        return self.run(**options)

    def extend(
        self,
        epochs: int,
        *,
        trials: Sequence[int] | None = None,
        best: int | None = None,
        **options: Any,
    ) -> StudyResults:
        """Train finished trials further, then run the study to its total.

        A trial that is extended from 5 epochs to 12 ends bit-identical to one that trained 12 from
        its start; its result at 5 is kept (`TrialRecord.lengths`). That holds for code that does not depend on the
        number of epochs; a learning rate that decays over all steps is noticed. After an interruption,
        `resume` continues the extension.

        Args:
            epochs: Total number of epochs, finished ones included.
            trials: Numbers of the trials; None for all complete and interrupted trials and all that
                have not started.
            best: Instead of numbers, how many of the best trials.
            options: The arguments of `run`.

        Raises:
            UsageError: A trial has failed, or trained for more epochs; or trials are running.
            CheckpointError: A trial's last checkpoint is missing; the message lists those that it
                has.
            SweeperError: As for `run`.
        """
        return self.run(epochs=asked_extension(epochs, trials, best), **options)

    def confirm(
        self,
        *,
        best: int | None = None,
        repeats: int = 5,
        at_most: int | None = None,
        trials: Sequence[int] | None = None,
        **options: Any,
    ) -> StudyResults:
        """Train the leading configurations again, with new seeds, and rank them by the new values only.

        Repeat r of every configuration has the same seed. The trainings are a study of their own, stored
        under ``NAME~confirm``: called again, this continues it, with larger ``repeats`` or ``at_most``
        if these are given.

        Args:
            best: How many of the leading configurations; 5 by default.
            repeats: Repeats of each of them; 5 by default.
            at_most: Most repeats of one of them: further rounds of one repeat go to those that are not
                yet distinguishable from the leader. No further rounds by default.
            trials: Instead of ``best``, numbers of trials whose configurations are confirmed.
            options: The arguments of `run`.

        Returns:
            The results of the confirmation: its ``configurations`` have the numbers of this study, and
            ``best`` is the confirmed leader's best repeat.

        Raises:
            UsageError: Fewer than two configurations are complete, or others are being confirmed.
            DefinitionChangedError: The definition or its code has changed since the trials ran.
            SweeperError: As for `run`.
        """
        from sweeper.declarations.repeating import ConfirmRequest

        request = ConfirmRequest(best, tuple(trials or ()), repeats, at_most)
        return self.run(confirm=request, **options)

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
        from sweeper.api.stored_study import StoredStudy

        models = _models(self.name, _settings(storage, runs_dir), definition=self)
        return StoredStudy(self.name, models).results()

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
        """Measure every kept checkpoint on held-out data, store the results, and return them, best first.

        Args:
            trial: The number of the only trial to evaluate; None for every trial.
            data: A function ``trial -> Data``, a `Data`, or ``"FILE:NAME"`` of either: its ``test``
                is read, otherwise its ``validation``. None for ``Data(test=…)`` of the study's data
                factory.
            metric: The metric to rank by, as the test step reports it; by default the study's
                (first) objective without ``val_``.
            direction: Whether a larger ``metric`` is better; by default from the objectives or the
                metric's name.
            workers: Trials side by side; the machine's cores by default.
            storage: The database's URL, as in `run`.
            runs_dir: Where files are, as in `run`.
            listener: Receives the progress; by default it goes to standard error.

        Raises:
            UnknownStudyError: The study has not been run yet, or there is no such trial.
            UsageError: There are no such data, the metric was not reported, or its direction is
                unknown.
            DefinitionChangedError: The definition has changed since the trials ran.
            Interrupted: SIGINT or SIGTERM was received; finished results are stored.
            SweeperError: No checkpoint could be evaluated.
        """
        end_reading()
        from sweeper.api.evaluating import EvaluationRequest, evaluate_study, held_out_data
        from sweeper.run.options import WorkerOptions
        from sweeper.views.terminal.live import listening

        settings = _settings(storage, runs_dir, workers=workers)
        with listening(listener) as progress:
            return evaluate_study(
                EvaluationRequest(
                    study=self.name,
                    options=WorkerOptions.resolved(settings, slots=settings.workers),
                    listener=progress,
                    trial=trial,
                    data=held_out_data(data),
                    metric=metric,
                    direction=direction,
                    definition=self,
                )
            ).records

    def check(self, *, workers: int | None = None, listener: Listener | None = None) -> CheckReport:
        """Check the study before it runs, as `sweeper check` does: independence, exactness, cost.

        Its first trial is trained for some short epochs, and again, killed and resumed, each time in separate
        processes. Nothing is stored, and this process imports no TensorFlow.

        Args:
            workers: Parallel trials, for the estimates; the machine's cores by default.
            listener: Receives the progress; by default it goes to standard error, or a notebook's cell.

        Returns:
            The report: its text, also in a notebook, has every finding, ``holds`` is whether none is an error.

        Raises:
            DefinitionError: The study cannot be run.
            Interrupted: SIGINT was received.
            ExecutionError: A process could not be started.
        """
        end_reading()
        from sweeper.checks.check import check_study
        from sweeper.records.events import Doing
        from sweeper.run.launch.sources import source_of
        from sweeper.views.terminal.live import listening

        settings = _settings(None, None, workers=workers)
        with listening(listener, Doing("importing TensorFlow and the study")) as progress:
            return check_study(
                source_of(self),
                workers=settings.workers,
                notify=lambda activity: progress(Doing(activity)),
            )

    def verify(
        self,
        *,
        trial: int | Literal["best", "all"] = "best",
        interrupt: bool = False,
        seed: int | None = None,
        workers: int | None = None,
        storage: str | None = None,
        runs_dir: str | Path | None = None,
        listener: Listener | None = None,
    ) -> StudyVerification:
        """Replay finished trials, compare every bit with what is stored, and store the verdicts.

        It does what `sweeper verify` does, and also for a study that was defined in a notebook, whose code
        is only in this process. ``results[3].verify()`` verifies one trial.

        Args:
            trial: A trial's number; ``"best"``, by default, or ``"all"`` finished ones.
            interrupt: Whether each replay is killed at a random step and resumed.
            seed: Seed of these steps; None for a random one.
            workers: Replays side by side; the machine's cores by default.
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.
            listener: Receives the progress; by default it goes to standard error, or a notebook's cell.

        Returns:
            The verdicts: the text, also in a notebook, has a line for each trial, with what differs;
            ``holds`` is whether every trial is bit-identical.

        Raises:
            UnknownStudyError: The study has not been run yet, or there is no such trial.
            DefinitionChangedError: The definition or its code has changed since the trials ran.
            Interrupted: SIGINT or SIGTERM was received; verdicts until then are stored.
            SweeperError: There is no finished trial, or a replay could not be run.
        """
        end_reading()
        models = _models(self.name, _settings(storage, runs_dir), definition=self)
        return models.verify(
            trial, interrupt=interrupt, seed=seed, workers=workers, listener=listener
        )

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
    """Return the study in ``FILE[:NAME]`` or ``package.module[:NAME]``, or a stored study by its name.

    Args:
        target: A file or a module with a study, which is imported; or the name of a study in the
            database, which is read without its code. If both exist, the stored study is returned; write
            ``FILE.py`` or ``module:NAME`` for the other.
        storage: The database of a stored study; by default ``sqlite:///runs/sweeper.db``.
        runs_dir: Where its files are; ``runs`` by default.
        checkpoints_dir: Where its checkpoints are; below ``runs_dir`` by default.
        source: ``FILE[:NAME]`` of its code, if the file has moved since the study ran;
            `StoredStudy.definition` and the trials' models need it.

    Raises:
        StudyFileError: No such file or module, no study in it, or several and no NAME, and no
            stored study of that name.
        StudyImportError: The module raised while it was imported.
        DatabaseUnavailableError: The database cannot be reached.

    Examples:
        >>> stored = sweeper.load_study("digits")
    """
    name = os.fspath(target)
    may_be_stored = isinstance(target, str) and is_name(name) and not Path(name).is_file()
    if may_be_stored or source is not None:
        from sweeper.api.stored_study import StoredStudy, is_stored

        settings = _settings(storage, runs_dir, checkpoints_dir)
        if is_stored(name, settings.storage):
            return StoredStudy(name, _models(name, settings, source=source))
        if any(option is not None for option in (storage, runs_dir, checkpoints_dir, source)):
            raise UnknownStudyError(f"there is no study {name!r} in {shown_url(settings.storage)}")
    try:
        definition = load_definition(name)
    except StudyFileError as error:
        if not may_be_stored:
            raise
        raise StudyFileError(
            f"{error}; and there is no study of that name in {shown_url(settings.storage)}"
        ) from None
    if not isinstance(definition, Study):
        raise StudyFileError(f"{name} holds a bare StudyDefinition; write sweeper.Study(…) instead")
    return definition


def _settings(
    storage: str | None,
    runs_dir: str | Path | None,
    checkpoints_dir: str | Path | None = None,
    **more: Any,
) -> Settings:
    from sweeper.declarations.settings import load_settings

    return load_settings(
        storage=storage,
        runs_dir=None if runs_dir is None else Path(runs_dir),
        checkpoints=None if checkpoints_dir is None else str(checkpoints_dir),
        **more,
    )


def _models(
    name: str,
    settings: Settings,
    *,
    definition: StudyDefinition | None = None,
    source: str | None = None,
) -> StudyModels:
    from sweeper.api.models import StudyModels

    return StudyModels.of(settings, name, definition=definition, source=source)


def asked_extension(
    epochs: int | Extension | None, trials: Sequence[int] | None = None, best: int | None = None
) -> Extension | None:
    """Return the request as one record; None if no extension is requested."""
    if epochs is None or isinstance(epochs, Extension):
        return epochs
    if trials is not None and best is not None:
        raise UsageError("both trials= and best= were given; give one of them")
    numbers = None
    if trials is not None:
        numbers = tuple(checked_whole(number, "trials", least=0) for number in trials)
    return Extension(
        checked_whole(epochs, "epochs", least=1),
        numbers,
        None if best is None else checked_whole(best, "best", least=1),
    )
