"""Lend this process's slots to a prepared study: until nothing is left, or a stop is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.errors import Interrupted
from sweeper.events import Event, Listener, Notice, StudyOpened
from sweeper.execution.auditing import refuse_inexact
from sweeper.execution.engines import LocalEngine
from sweeper.execution.gpus import SlotDevices, find_gpus, share_gpus
from sweeper.execution.lease import LEASE_SECONDS, Stay
from sweeper.execution.locating import locate
from sweeper.execution.preparing import PreparedStudy
from sweeper.execution.signals import stop_signals
from sweeper.execution.slots import SlotContext
from sweeper.execution.worker import serve_slot
from sweeper.paths import Place, RunPaths, absolute_place
from sweeper.results import StudyStatus
from sweeper.shown import shown_url
from sweeper.storage.audits import Audits
from sweeper.storage.repository import WorkerIdentity

__all__ = ["Lending", "bound_slots", "lend_slots", "opened", "say_unfinished"]


@dataclass(frozen=True)
class Lending:
    """How a process lends its slots.

    Attributes:
        slots: Trials side by side.
        runs_dir: Where files go.
        storage: The database's URL, to be shown.
        engine: What placed this process: "local", "dask" or "ray".
        resume_command: What the user types, or calls, to go on.
        lease_seconds: After so many seconds without a word, another machine takes its trials.
        grace: Seconds that trials have after SIGTERM; None for as long as their step takes.
        fail_fast: Whether the first failed trial stops the others.
        devices: What each slot sees of the machine's GPUs.
        checkpoints: Where checkpoints go; None for ``runs_dir``.
        accept_inexact: Whether the study goes on although an audit found a difference.
    """

    slots: int
    runs_dir: Path
    storage: str = field(repr=False)
    engine: str = "local"
    resume_command: str = ""
    lease_seconds: float = LEASE_SECONDS
    grace: float | None = None
    fail_fast: bool = False
    devices: SlotDevices = field(default_factory=SlotDevices)
    checkpoints: Place | None = None
    accept_inexact: bool = False


def lend_slots(prepared: PreparedStudy, lending: Lending, listener: Listener) -> StudyStatus:
    """Run the study's trials here until none is left, and return how the study stands.

    Raises:
        Interrupted: A signal, a request to stop, or the study's time limit; every trial that ran
            here is checkpointed and can be resumed.
        SweeperError: Something other than a trial failed; or, where asked for, a trial.
    """
    settings, repository = prepared.settings, prepared.repository
    slots = prepared.slots(lending.slots, listener)
    context = SlotContext(
        repository=repository,
        settings=settings,
        search=prepared.search,
        paths=RunPaths(
            lending.runs_dir.absolute(), settings.name, absolute_place(lending.checkpoints)
        ),
        worker=WorkerIdentity.here(),
        runner=prepared.runner,
        listener=listener,
        stay=Stay(engine=lending.engine, slots=slots, lease_seconds=lending.lease_seconds),
        devices=lending.devices,
        fail_fast=lending.fail_fast,
        fingerprint=prepared.fingerprint,
    )
    if callable(prepared.runner) and settings.time_limit is not None:
        context.tell(
            Notice(
                f"time_limit={settings.time_limit:g} is not watched over where trials run inside "
                "this process, which could not be killed"
            )
        )
    if callable(prepared.runner) and settings.audit != "off" and settings.deterministic:
        context.tell(
            Notice(
                "nothing is audited where trials run inside this process: a replay needs a fresh "
                'one, as isolation="auto" gives'
            )
        )
    context.tell(opened(prepared, lending.storage, slots, lending.resume_command))
    warning = refuse_inexact(
        Audits(repository.database), settings.name, accept=lending.accept_inexact
    )
    if warning is not None:
        context.tell(Notice(warning))
    for trial in repository.unfinished(settings.name):
        if trial.state == "interrupted" and trial.checkpoints:
            context.tell_of_checkpoints(trial, locate(trial, context.paths))
    with (
        stop_signals(_ThisProcess(context), context.tell, lending.grace),
        _time_limit(context, settings.study_time_limit),
    ):
        LocalEngine().run(lambda: serve_slot(context), slots)
    if context.error is not None:
        raise context.error
    # What a worker elsewhere found has stopped this one too.
    refuse_inexact(Audits(repository.database), settings.name, accept=False)
    status = repository.status(settings.name)
    if context.stopping.is_set() and status.finished < status.target:
        raise Interrupted(say_unfinished(status))
    return status


def bound_slots(
    wanted: int | None,
    gpus: str | None,
    trials_per_gpu: int,
    memory: int | None,
    tell: Listener,
) -> tuple[int, SlotDevices]:
    """How many slots a process lends, and the device of each.

    Args:
        wanted: Slots; None for as many as the GPUs have room for.
        gpus: ``"all"`` or ids with commas between; None to bind nothing.
        trials_per_gpu: Trials side by side on each.
        memory: Megabytes of a GPU that a trial may use; None to share it out.
        tell: Told where the GPUs have room for fewer.

    Raises:
        UsageError: There are no such GPUs.
    """
    if gpus is None:
        return wanted or 1, SlotDevices()
    devices = share_gpus(find_gpus(gpus), trials_per_gpu, memory)
    if wanted is not None and wanted > len(devices):
        tell(
            Notice(
                f"the GPUs have room for {len(devices)} trials side by side (--gpus {gpus}, "
                f"--trials-per-gpu {trials_per_gpu}), so {len(devices)} of {wanted} workers are used"
            )
        )
    slots = min(wanted or len(devices), len(devices))
    return slots, SlotDevices(devices[:slots])


def opened(prepared: PreparedStudy, storage: str, slots: int, resume_command: str) -> StudyOpened:
    """The event that begins a run."""
    settings = prepared.settings
    status = prepared.repository.status(settings.name)
    return StudyOpened(
        study=settings.name,
        target=status.target,
        finished=status.finished,
        epochs=settings.epochs,
        objective=settings.objective,
        direction=settings.direction,
        workers=slots,
        storage=shown_url(storage),
        resume_command=resume_command,
        best=status.best,
        objectives=tuple(objective.name for objective in status.objectives),
    )


def say_unfinished(status: StudyStatus) -> str:
    """For a person: how far a study is that was stopped."""
    running = f", {status.running} running elsewhere" if status.running else ""
    return (
        f"study {status.study!r} has {status.finished} of {status.target} trials finished "
        f"and {status.interrupted} to be resumed{running}"
    )


@dataclass(frozen=True)
class _ThisProcess:
    """What a signal to this process stops: its own slots, nobody else's."""

    context: SlotContext

    def drain(self) -> None:
        self.context.stopping.set()

    def kill(self) -> None:
        self.context.stopping.set()
        self.context.killing.set()


@contextmanager
def _time_limit(context: SlotContext, seconds: float | None) -> Iterator[None]:
    """Stop as after SIGTERM when the study's time limit is over."""
    if seconds is None:
        yield
        return

    def stop() -> None:
        told: Event = Notice(
            f"the study's time limit of {seconds:g} s is over: every trial finishes its step and "
            "writes a checkpoint"
        )
        context.stopping.set()
        context.tell(told)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
