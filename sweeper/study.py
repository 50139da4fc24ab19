"""`Study`: a definition that can be run, resumed and asked for its results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.definition import StudyDefinition
from sweeper.errors import DefinitionError, StudyFileError
from sweeper.loading import is_loading, load_definition
from sweeper.results import StudyResults, StudyStatus

if TYPE_CHECKING:
    from sweeper.events import Listener

__all__ = ["Study", "load_study"]


class Study(StudyDefinition):
    """A comparison of hyperparameters; see `StudyDefinition` for its arguments.

    `run` gives every trial a process of its own and keeps everything in a database, so it can be
    interrupted at any moment and called again: it goes on where it was, bit for bit.
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
    ) -> StudyResults:
        """Run the study to its total and return its results.

        Args:
            workers: Trials side by side; the machine's cores by default. It changes no result.
            trials: A new total, instead of the definition's.
            storage: A database URL; by default ``sqlite:///runs/sweeper.db``.
            runs_dir: Where files go; ``runs`` by default.
            engine: Where workers run: ``"local"`` by default, ``"dask"`` or ``"ray"``.
            isolation: ``"auto"``, ``"fork"``, ``"spawn"``, or ``"inline"`` for a debugger.
            listener: Told of everything that happens; by default progress goes to standard error.
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
        if is_loading():
            msg = (
                f"study {self.name!r} is run while its own file is being imported, which would "
                'start it again in every process; put the call under `if __name__ == "__main__":`'
            )
            raise DefinitionError(msg)
        from sweeper.execution.sweep import SweepRequest, run_sweep
        from sweeper.report.live import progress_listener
        from sweeper.settings import load_settings

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

        def sweep(told: Listener) -> StudyResults:
            return run_sweep(
                SweepRequest(
                    source=None,
                    study=None,
                    workers=settings.workers,
                    trials=trials,
                    engine=settings.engine,
                    isolation=settings.isolation,
                    storage=settings.storage,
                    runs_dir=settings.runs_dir,
                    listener=told,
                    accept_changes=accept_changes,
                    definition=self,
                    resume_command="study.resume()",
                    engine_address=settings.engine_address,
                    lease_seconds=settings.lease_seconds,
                    gpus=settings.gpus,
                    trials_per_gpu=settings.trials_per_gpu,
                    fail_fast=fail_fast,
                    checkpoints=settings.checkpoints_place,
                    accept_inexact=accept_inexact,
                    fresh=fresh,
                )
            )

        if listener is not None:
            return sweep(listener)
        import sys

        with progress_listener(sys.stderr) as progress:
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
        """Go on with a study that was interrupted; the same as `run`, for the reader's sake."""
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

    def results(
        self, *, storage: str | None = None, runs_dir: str | Path | None = None
    ) -> StudyResults:
        """What the database holds of this study, running nothing.

        Raises:
            UnknownStudyError: The study has not been run yet.
            DatabaseUnavailableError: There is no such database.
        """
        from sweeper.settings import load_settings
        from sweeper.storage.database import Database
        from sweeper.storage.repository import Repository

        settings = load_settings(
            storage=storage, runs_dir=None if runs_dir is None else Path(runs_dir)
        )
        with Database.open(settings.storage, create=False) as database:
            repository = Repository(database)
            return StudyResults(repository.status(self.name), repository.trials(self.name))

    def status(
        self, *, storage: str | None = None, runs_dir: str | Path | None = None
    ) -> StudyStatus:
        """How many trials stand where; see `results` for arguments and errors."""
        return self.results(storage=storage, runs_dir=runs_dir).status


def load_study(target: str | os.PathLike[str]) -> Study:
    """The study in ``FILE[:NAME]`` or ``package.module[:NAME]``.

    Raises:
        StudyFileError: No such file or module, no study in it, or several and no NAME.
        StudyImportError: The module raised while it was imported.
    """
    definition = load_definition(os.fspath(target))
    if not isinstance(definition, Study):
        msg = f"{target} holds a bare StudyDefinition; write sweeper.Study(…) instead"
        raise StudyFileError(msg)
    return definition
