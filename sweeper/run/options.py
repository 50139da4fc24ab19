"""Options of a run and of a worker host: three frozen records, each passed as a whole.

Commands import this module before they start the fork server's process, so it does not import TensorFlow,
Optuna or SQLAlchemy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sweeper.records.lengths import Extension
from sweeper.run.protocol.messages import StudySource
from sweeper.support.paths import Location, RunPaths, absolute_location

if TYPE_CHECKING:
    from sweeper.declarations.repeating import ConfirmRequest
    from sweeper.declarations.settings import Settings
    from sweeper.definition.definition import StudyDefinition
    from sweeper.records.events import Listener
    from sweeper.run.launch.server_process import ServerProcess


DEFAULT_GRACE = 30.0
"""Seconds in which trials may finish their step where nobody may be there to kill them."""


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker, on this machine or on another.

    Attributes:
        slots: Number of parallel trials; None for one, or for as many as fit on the GPUs.
        checkpoints: Location of the checkpoints; None for ``runs_dir``.
        isolation: How trial processes are started: ``"auto"``, ``"fork"``, ``"spawn"`` or
            ``"inline"``.
        gpus: ``"all"`` or comma-separated ids; None to leave GPUs as they are.
        trials_per_gpu: Number of parallel trials on each GPU.
        gpu_memory: Megabytes of a GPU that a trial may use; None for an equal share.
        lease_seconds: Seconds without a renewal after which other machines may take over the trials.
        grace: Seconds in which trials may finish their step after SIGTERM, and after the study's time
            limit; None for no limit after SIGTERM, and `DEFAULT_GRACE` after the time limit.
        fail_fast: Whether the first failed trial stops the others.
        accept_inexact: Whether to continue a study in which an audit found a difference.
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
    def resolved(cls, settings: Settings, *, slots: int | None, **others: Any) -> Self:
        """Return the options from ``settings``, and ``others`` of one command."""
        names = ("storage", "runs_dir", "isolation", "gpus", "trials_per_gpu", "lease_seconds")
        configured = {name: getattr(settings, name) for name in names}
        return cls(slots, checkpoints=settings.checkpoints_location, **configured, **others)

    def paths(self, study: str) -> RunPaths:
        """Return the absolute paths of the files of ``study``."""
        return RunPaths(self.runs_dir.absolute(), study, absolute_location(self.checkpoints))


@dataclass(frozen=True)
class RunRequest:
    """Request to run a study here or on a cluster; it has a source, a study object or a stored name.

    Attributes:
        options: Options of the workers; ``slots`` is the number on all machines together.
        source: ``FILE[:NAME]`` or ``package.module[:NAME]``.
        engine: Where slots run: ``"local"``, ``"dask"`` or ``"ray"``.
        engine_address: Address of the cluster; None to start one here.
        accept_changes: Whether a changed definition replaces the stored one.
        fresh: Whether to rename a stored study of this name and start a new one.
        resume_command: Command or call by which the user resumes the study.
        server: A started process that becomes the fork server; None to start one.
        extension: Trials to train further, and the number of epochs; None for none.
        confirm: Configurations to confirm in a study beside it, which is run instead; None for none.
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
    confirm: ConfirmRequest | None = None


@dataclass(frozen=True)
class HostSpec:
    """Worker host for a study in a shared database.

    Attributes:
        engine: Engine that placed it: ``"dask"`` or ``"ray"``; ``"local"`` if the user started it.
        number: Number of the host in one placement, from 0.
        placed_from: Host name of the machine that placed it; None if the user started it.
        pickled: The study's definition if it is in no file; None otherwise.
        source: Location of the study's file on this machine if it differs from the stored one.
        unless_stopped: Whether to run no trials if the study was asked to stop; otherwise a host that
            the user started clears that request.
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
