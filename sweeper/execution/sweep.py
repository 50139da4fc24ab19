"""A whole run of a study: prepare it, run its trials here or on a cluster, give its results."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.checkpoints.objects import check_checkpoints_place
from sweeper.definition import StudyDefinition
from sweeper.events import Listener, OneAtATime
from sweeper.execution.engines import CLUSTERS, check_engine
from sweeper.execution.preparing import PreparedStudy
from sweeper.execution.signals import early_termination
from sweeper.execution.study_place import StudyPlace
from sweeper.paths import Place
from sweeper.results import StudyResults

if TYPE_CHECKING:
    from sweeper.execution.early_check import EarlyCheck
    from sweeper.execution.serving import Lending
    from sweeper.storage.repository import Repository

__all__ = ["SweepRequest", "run_sweep"]


@dataclass(frozen=True)
class SweepRequest:
    """What to run.

    Attributes:
        source: ``FILE[:NAME]`` or ``package.module[:NAME]``; None to go by ``study``, or with
            ``definition``.
        study: The name of a study in the database, to resume it.
        workers: Trials side by side.
        trials: A new total; None to keep the study's.
        engine: Where slots run: ``"local"``, ``"dask"`` or ``"ray"``.
        isolation: ``"auto"``, ``"fork"``, ``"spawn"`` or ``"inline"``.
        storage: The database's URL.
        runs_dir: Where files go.
        listener: Told of everything that happens.
        accept_changes: Whether a changed definition takes the stored one's place.
        definition: A study object of this process, instead of ``source``.
        resume_command: What the user types, or calls, to go on.
        engine_address: The cluster's; None to make one here.
        fail_fast: Whether the first failed trial stops the others.
        grace: Seconds that trials have after SIGTERM; None for as long as their step takes.
        lease_seconds: After so many seconds without a word, another machine takes the trials.
        gpus: ``"all"`` or ids with commas between; None to leave GPUs as they are.
        trials_per_gpu: Trials side by side on each GPU.
        gpu_memory: Megabytes of a GPU that a trial may use; None to share it out.
        checkpoints: Where checkpoints go; None for the runs directory.
        accept_inexact: Whether the study goes on although an audit found a difference.
        fresh: Whether a stored study of this name is set aside, and a new one begins.
    """

    source: str | None
    study: str | None
    workers: int
    trials: int | None
    engine: str
    isolation: str
    storage: str = field(repr=False)
    runs_dir: Path
    listener: Listener
    accept_changes: bool = False
    definition: StudyDefinition | None = None
    resume_command: str = ""
    engine_address: str | None = None
    fail_fast: bool = False
    grace: float | None = None
    lease_seconds: float = 60.0
    gpus: str | None = None
    trials_per_gpu: int = 1
    gpu_memory: int | None = None
    checkpoints: Place | None = None
    accept_inexact: bool = False
    fresh: bool = False

    @property
    def place(self) -> StudyPlace:
        """Where the study's code and database are."""
        return StudyPlace(
            storage=self.storage,
            runs_dir=self.runs_dir,
            listener=self.listener,
            isolation=self.isolation,
            source=self.source,
            study=self.study,
            definition=self.definition,
            trials=self.trials,
            accept_changes=self.accept_changes,
            checkpoints=self.checkpoints,
            fresh=self.fresh,
        )


def run_sweep(request: SweepRequest) -> StudyResults:
    """Run a study to its total, or go on where it was, and return all its results.

    Raises:
        Interrupted: A signal, a request to stop, or the study's time limit; every trial is
            checkpointed and can be resumed.
        SweeperError: The study cannot be loaded or run, or something other than a trial failed.
    """
    check_engine(request.engine, isolation=request.isolation, address=request.engine_address)
    check_checkpoints_place(request.checkpoints, request.isolation)
    request = replace(request, listener=OneAtATime(request.listener))
    with early_termination(), PreparedStudy(request.place) as prepared:
        repository = prepared.repository
        _check_exactness(repository, prepared.settings.name, accept=request.accept_inexact)
        with _checked_early(prepared, request) as check:
            if request.engine in CLUSTERS:
                from sweeper.execution.driving import drive

                # The driver ends the process that trials, and the check, are forked from.
                check.finish()
                status = drive(prepared, request)
            else:
                from sweeper.execution.serving import lend_slots

                lending = _lending(request)
                check.wait()
                status = lend_slots(prepared, lending, request.listener)
        return StudyResults(status, repository.trials(prepared.settings.name))


def _checked_early(
    prepared: PreparedStudy, request: SweepRequest
) -> AbstractContextManager[EarlyCheck]:
    """The check of a study that is run; one that is resumed was checked when it was run."""
    from sweeper.execution.early_check import early_check

    return early_check(prepared, request.listener, wanted=request.study is None)


def _check_exactness(repository: Repository, study: str, *, accept: bool) -> None:
    """Refuse a study that an audit has ended, unless that is accepted now or was before."""
    from sweeper.execution.auditing import refuse_inexact
    from sweeper.storage.audits import Audits

    refuse_inexact(Audits(repository.database), study, accept=accept)


def _lending(request: SweepRequest) -> Lending:
    from sweeper.execution.serving import Lending, bound_slots

    slots, devices = bound_slots(
        request.workers,
        request.gpus,
        request.trials_per_gpu,
        request.gpu_memory,
        request.listener,
    )
    return Lending(
        slots=slots,
        runs_dir=request.runs_dir,
        storage=request.storage,
        resume_command=request.resume_command,
        lease_seconds=request.lease_seconds,
        grace=request.grace,
        fail_fast=request.fail_fast,
        devices=devices,
        checkpoints=request.checkpoints,
        accept_inexact=request.accept_inexact,
    )
