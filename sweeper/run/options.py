"""Options of a run and of a worker host: three frozen records, passed whole.

The command imports this module before the process of the warm server is begun, so that it imports
nothing that takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sweeper.records.lengths import Extension
from sweeper.run.protocol.messages import StudySource
from sweeper.support.paths import Location, RunPaths, absolute_location

if TYPE_CHECKING:
    from sweeper.definition.definition import StudyDefinition
    from sweeper.records.events import Listener
    from sweeper.run.launch.server_process import ServerProcess
    from sweeper.spec.settings import Settings


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker, on this machine or on another.

    Attributes:
        slots: Trials side by side; None for one, or as many as the GPUs have room for.
        storage: The database's URL.
        runs_dir: Where files go.
        checkpoints: Where checkpoints go; None for ``runs_dir``.
        isolation: How trial processes are made: ``"auto"``, ``"fork"``, ``"spawn"`` or
            ``"inline"``.
        gpus: ``"all"`` or ids with commas between; None to leave GPUs as they are.
        trials_per_gpu: Trials side by side on each GPU.
        gpu_memory: Megabytes of a GPU that a trial may use; None to share it out.
        lease_seconds: After so many seconds without a renewal, another machine takes the trials.
        grace: Seconds that trials have after SIGTERM; None for as long as their step takes.
        fail_fast: Whether the first failed trial stops the others.
        accept_inexact: Whether the study goes on although an audit found a difference.
    """

    slots: int | None
    storage: str = field(repr=False)
    runs_dir: Path
    checkpoints: Location | None = None
    isolation: str = "auto"
    gpus: str | None = None
    trials_per_gpu: int = 1
    gpu_memory: int | None = None
    lease_seconds: float = 60.0
    grace: float | None = None
    fail_fast: bool = False
    accept_inexact: bool = False

    @classmethod
    def resolved(
        cls,
        settings: Settings,
        *,
        slots: int | None,
        gpu_memory: int | None = None,
        grace: float | None = None,
        fail_fast: bool = False,
        accept_inexact: bool = False,
    ) -> Self:
        """Return the options of ``settings``, with those that hold for one command alone."""
        return cls(
            slots=slots,
            storage=settings.storage,
            runs_dir=settings.runs_dir,
            checkpoints=settings.checkpoints_location,
            isolation=settings.isolation,
            gpus=settings.gpus,
            trials_per_gpu=settings.trials_per_gpu,
            gpu_memory=gpu_memory,
            lease_seconds=settings.lease_seconds,
            grace=grace,
            fail_fast=fail_fast,
            accept_inexact=accept_inexact,
        )

    def paths(self, study: str) -> RunPaths:
        """Return where the files of ``study`` go, called the same from every directory."""
        return RunPaths(self.runs_dir.absolute(), study, absolute_location(self.checkpoints))


@dataclass(frozen=True)
class RunRequest:
    """A study to run here or on a cluster: a source, a study object, or a stored study's name.

    Attributes:
        options: How workers run its trials; ``slots`` counts those of all machines.
        listener: Receives every event.
        source: ``FILE[:NAME]`` or ``package.module[:NAME]``.
        definition: A study object of this process.
        study: The name of a study in the database, to resume it.
        trials: A new total; None to keep the study's.
        engine: Where slots run: ``"local"``, ``"dask"`` or ``"ray"``.
        engine_address: The cluster's; None to make one here.
        accept_changes: Whether a changed definition replaces the stored one.
        fresh: Whether a stored study of this name is set aside, and a new one begins.
        resume_command: What the user types, or calls, to go on.
        server: A process already begun, which becomes the warm server.
        extension: What is to train on first, and how far; None for nothing.
    """

    options: WorkerOptions
    listener: Listener
    source: str | None = None
    definition: StudyDefinition | None = None
    study: str | None = None
    trials: int | None = None
    engine: str = "local"
    engine_address: str | None = None
    accept_changes: bool = False
    fresh: bool = False
    resume_command: str = ""
    server: ServerProcess | None = None
    extension: Extension | None = None


@dataclass(frozen=True)
class HostSpec:
    """A worker host of a study that is in a shared database already.

    Attributes:
        study: The study's name.
        options: How it runs trials.
        engine: What placed it: ``"local"`` where it was started by hand, ``"dask"`` or ``"ray"``.
        number: Counts the hosts of one placement, from 0.
        placed_from: The name of the machine of the run that placed it; None if started by hand.
        pickled: The study's definition, where it is in no file.
        source: Where the study's file is on this machine, if not where it was defined.
        unless_stopped: Whether to run nothing of a study that was asked to stop; otherwise a host
            that is started by hand clears that request.
        resume_command: What the user types to go on.
    """

    study: str
    options: WorkerOptions
    engine: str = "local"
    number: int = 0
    placed_from: str | None = None
    pickled: StudySource | None = None
    source: str | None = None
    unless_stopped: bool = False
    resume_command: str = ""
