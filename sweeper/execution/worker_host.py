"""A worker host: this machine's slots, lent to a study that is in a shared database already.

It changes nothing of the study: the definition, the total and the place of the study's file are
what the run that began it wrote down. The file must be the same here, byte for byte, or the trials
of two machines would not be trials of one study.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.checkpoints.objects import check_checkpoints_place
from sweeper.errors import ExecutionError, UsageError
from sweeper.events import Listener, Notice
from sweeper.execution.placed import HostOrder
from sweeper.execution.preparing import PreparedStudy
from sweeper.execution.signals import early_termination
from sweeper.execution.study_place import StudyPlace
from sweeper.paths import Place, parse_place
from sweeper.results import StudyStatus

__all__ = ["WorkerRequest", "lend", "lend_as_ordered"]


@dataclass(frozen=True)
class WorkerRequest:
    """What to lend, and to which study.

    Attributes:
        study: The study's name.
        slots: Trials side by side; None for one, or as many as the GPUs have room for.
        source: Where the study's file is on this machine, if not where it was defined.
        unless_stopped: Whether to lend nothing to a study that was asked to stop; otherwise that
            request is over.
        grace: Seconds that trials have after SIGTERM; None for as long as their step takes.
        order: What a run that placed this host told it; None for one that was started by hand.
        resume_command: What the user types to go on.
        checkpoints: Where checkpoints go; None for the runs directory.
        accept_inexact: Whether the study goes on although an audit found a difference.
    """

    study: str
    slots: int | None
    storage: str = field(repr=False)
    runs_dir: Path
    listener: Listener
    isolation: str = "auto"
    source: str | None = None
    unless_stopped: bool = False
    grace: float | None = None
    lease_seconds: float = 60.0
    gpus: str | None = None
    trials_per_gpu: int = 1
    gpu_memory: int | None = None
    fail_fast: bool = False
    order: HostOrder | None = None
    resume_command: str = ""
    checkpoints: Place | None = None
    accept_inexact: bool = False


def lend(request: WorkerRequest) -> StudyStatus:
    """Lend slots until the study is done; return how it stands.

    Raises:
        Interrupted: A signal, a request to stop, or the study's time limit; every trial that ran
            here is checkpointed and can be resumed.
        UsageError: There is no such study, or its file is not the same one here.
        SweeperError: Something other than a trial failed.
    """
    order = request.order
    check_checkpoints_place(request.checkpoints, request.isolation)
    place = StudyPlace(
        storage=request.storage,
        runs_dir=request.runs_dir,
        listener=request.listener,
        isolation=request.isolation,
        source=request.source,
        study=request.study,
        sent=None if order is None else order.source,
        checkpoints=request.checkpoints,
        lends=True,
    )
    with early_termination():
        if order is None:
            stopped = _begin(request)
            if stopped is not None:
                return stopped
        with PreparedStudy(place) as prepared:
            from sweeper.execution.serving import Lending, bound_slots, lend_slots

            _check_machine(prepared, order)
            slots, devices = bound_slots(
                request.slots,
                request.gpus,
                request.trials_per_gpu,
                request.gpu_memory,
                request.listener,
            )
            lending = Lending(
                slots=slots,
                runs_dir=request.runs_dir,
                storage=request.storage,
                engine="local" if order is None else order.engine,
                resume_command=request.resume_command,
                lease_seconds=request.lease_seconds,
                grace=request.grace,
                fail_fast=request.fail_fast,
                devices=devices,
                checkpoints=request.checkpoints,
                accept_inexact=request.accept_inexact,
            )
            return lend_slots(prepared, lending, request.listener)


def lend_as_ordered(order: HostOrder, listener: Listener) -> StudyStatus:
    """Lend what the run that placed this host has ordered; see `lend`."""
    return lend(
        WorkerRequest(
            study=order.study,
            slots=order.slots,
            storage=order.storage,
            runs_dir=Path(order.runs_dir),
            listener=listener,
            isolation=order.isolation,
            grace=order.grace,
            lease_seconds=order.lease_seconds,
            gpus=order.gpus,
            trials_per_gpu=order.trials_per_gpu,
            gpu_memory=order.gpu_memory,
            fail_fast=order.fail_fast,
            order=order,
            checkpoints=None if order.checkpoints is None else parse_place(order.checkpoints),
        )
    )


def _begin(request: WorkerRequest) -> StudyStatus | None:
    """Forget a request to stop; or return how the study stands, where that is to be heeded."""
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    with Database.open(request.storage, create=False) as database:
        repository = Repository(database)
        if request.unless_stopped and repository.stop_requested(request.study) is not None:
            request.listener(
                Notice(
                    f"study {request.study!r} was asked to stop, so nothing is lent to it; "
                    f"`sweeper resume {request.study}` goes on with it"
                )
            )
            return repository.status(request.study)
        repository.clear_stop(request.study)
        return None


def _check_machine(prepared: PreparedStudy, order: HostOrder | None) -> None:
    """Check that a database which is a file is used by one machine alone.

    Raises:
        ExecutionError: The run that placed this host is on another machine.
        UsageError: Live workers of other machines are there.
    """
    repository = prepared.repository
    if not repository.database.in_file:
        return
    here = socket.gethostname()
    advice = (
        "a SQLite file is for the processes of one machine; copy it to a server with `sweeper db "
        "copy`, and give that with --storage postgresql://…"
    )
    if order is not None and order.placed_from != here:
        msg = (
            f"this worker is on {here}, and its database is a file on {order.placed_from}; {advice}"
        )
        raise ExecutionError(msg)
    others = {
        worker.host
        for worker in repository.workers(prepared.settings.name)
        if worker.live and worker.host != here
    }
    if others:
        msg = f"workers on {', '.join(sorted(others))} use this database as well; {advice}"
        raise UsageError(msg)
