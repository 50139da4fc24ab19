"""Execution of a prepared study's trials in this process's slots."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

from sweeper.errors import Interrupted, SweeperError
from sweeper.records.events import Listener, Notice, RunStopping, StudyCounted, StudyOpened
from sweeper.records.results import StudyStatus
from sweeper.run.auditing import audit_trial
from sweeper.run.options import DEFAULT_GRACE, WorkerOptions
from sweeper.run.prepared_study import PreparedStudy
from sweeper.run.signals import kill_after_grace, stop_signals
from sweeper.run.stored_study import refuse_inexact
from sweeper.run.worker.checkpoints import locate
from sweeper.run.worker.context import SlotContext
from sweeper.run.worker.gpus import SlotDevice, find_gpus, share_gpus
from sweeper.run.worker.leases import WorkerRow
from sweeper.run.worker.slot import serve_slot
from sweeper.support.calling import run_side_by_side
from sweeper.support.shown import shown_url

_COUNT_EVERY = 5.0
"""Seconds between two counts of the study's trials."""

_COUNT_SHARE = 50
"""Minimum pause after a count, as a multiple of the count's duration."""


def serve_slots(
    prepared: PreparedStudy,
    options: WorkerOptions,
    listener: Listener,
    *,
    engine: str = "local",
    resume_command: str = "",
) -> StudyStatus:
    """Run the study's trials here until none is left, and return the study's status.

    For ``engine`` and ``resume_command``, see `HostSpec`.

    Raises:
        UsageError: The machine does not have the requested GPUs.
        Interrupted: A signal, a request to stop, or the study's time limit; every trial that ran
            here is checkpointed and can be resumed.
        SweeperError: Something other than a trial failed; with ``fail_fast``, also if a trial failed.
    """
    settings = prepared.study.settings
    repository = prepared.study.repository
    warning = refuse_inexact(repository, settings.name, accept=options.accept_inexact)
    devices = _slot_devices(options, listener)
    slots = prepared.slots(len(devices) or options.slots or 1, listener)
    context = SlotContext(
        prepared.study,
        runner=prepared.runner,
        listener=listener,
        worker_row=WorkerRow(engine=engine, slots=slots, lease_seconds=options.lease_seconds),
        devices=cycle(devices or [SlotDevice()]),
        fail_fast=options.fail_fast,
    )
    inline = callable(prepared.runner)
    limits = {"time_limit": settings.time_limit, "study_time_limit": settings.study_time_limit}
    for name, limit in limits.items():
        if inline and limit is not None:
            reason = 'kills no trial with isolation="inline", because trials run in this process'
            context.report(Notice(f"{name}={limit:g} {reason}"))
    if inline and settings.audit != "off" and settings.deterministic:
        reason = 'because a replay needs a fresh process, as with isolation="auto"'
        context.report(Notice(f'nothing is audited with isolation="inline", {reason}'))
    context.report(opened(prepared, options.storage, slots, resume_command))
    if warning is not None:
        context.report(Notice(warning))
    for trial in repository.unfinished(settings.name):
        if trial.state == "interrupted" and trial.checkpoints:
            context.report_checkpoints(trial, locate(trial, context.study.paths))
    grace = DEFAULT_GRACE if options.grace is None else options.grace
    with (
        stop_signals(context.request_stop, context.report, options.grace),
        study_limit(context, settings.study_time_limit, grace),
        _counting(context),
    ):
        run_slots(lambda: serve_slot(context, audit_trial), slots, context.stopping)
    if context.error is not None:
        raise context.error
    # An audit on another machine may have stopped this worker.
    refuse_inexact(repository, settings.name, accept=False)
    status = repository.status(settings.name)
    if settings.patience is not None and status.is_over and status.target < settings.trials:
        ending = f"ended with {status.target} of {settings.trials} trials"
        listener(Notice(f"{ending}: none of the last {settings.patience} was better"))
    if context.stopping.is_set() and not status.is_over:
        raise Interrupted(describe_unfinished(status))
    return status


def _slot_devices(options: WorkerOptions, listener: Listener) -> tuple[SlotDevice, ...]:
    """Return the device of each slot, as many as wanted and fit on the GPUs; none without ``--gpus``."""
    slots = options.slots
    gpus = options.gpus
    if gpus is None:
        return ()
    devices = share_gpus(find_gpus(gpus), options.trials_per_gpu, options.gpu_memory)
    if slots is not None and slots > len(devices):
        listener(
            Notice(
                f"the GPUs have room for {len(devices)} parallel trials (--gpus {gpus}, "
                f"--trials-per-gpu {options.trials_per_gpu}), so {len(devices)} of {slots} "
                "workers are used"
            )
        )
    return devices[:slots]


def run_slots(slot: Callable[[], None], slots: int, stopping: threading.Event) -> None:
    """Run copies of a function, which each supervise a trial process, in threads; see `run_side_by_side`.

    A single copy runs in the calling thread, so that a debugger can follow it.
    """
    if slots == 1:
        slot()
    else:
        run_side_by_side([slot] * slots, slots, stopping)


def opened(prepared: PreparedStudy, storage: str, slots: int, resume_command: str) -> StudyOpened:
    """Return the first event of a run."""
    settings = prepared.study.settings
    return StudyOpened(
        status=prepared.study.repository.status(settings.name),
        workers=slots,
        storage=shown_url(storage),
        resume_command=resume_command,
        directed_by_name=prepared.directed_by_name,
        repeating=settings.repeating,
    )


def describe_unfinished(status: StudyStatus) -> str:
    """Return the message on the progress of a stopped study."""
    running = f", {status.running} running elsewhere" if status.running else ""
    paused = f", {status.paused} paused at a rung" if status.paused else ""
    return (
        f"study {status.study!r} has {status.finished} of {status.target} trials finished "
        f"and {status.interrupted} to be resumed{paused}{running}"
    )


@contextmanager
def _counting(context: SlotContext) -> Iterator[None]:
    """Context manager that reports counts of the study's trials at intervals."""
    over = threading.Event()
    repository = context.study.repository_with_short_timeout
    name = context.study.settings.name

    def count() -> None:
        reported: StudyCounted | None = None
        pause = _COUNT_EVERY
        while not over.wait(pause):
            began = time.monotonic()
            try:
                status = repository.status(name)
            except SweeperError:
                # The slots handle a database that cannot be reached; here, only the count is skipped.
                continue
            pause = max(_COUNT_EVERY, _COUNT_SHARE * (time.monotonic() - began))
            counted = StudyCounted(status)
            if counted != reported and not over.is_set():
                reported = counted
                context.report(counted)

    thread = threading.Thread(target=count, name="sweeper-counting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def study_limit(context: SlotContext, seconds: float | None, grace: float) -> Iterator[None]:
    """Stop as after SIGTERM when the study's time limit is over, and kill the trials after ``grace``."""
    over = threading.Event()

    def stop(seconds: float) -> None:
        if over.wait(seconds):
            return
        context.request_stop("drain")
        context.report(
            RunStopping(
                f"the study's time limit of {seconds:g} s is over: every trial finishes its step "
                f"and writes a checkpoint, and is killed after {grace:g} s of grace"
            )
        )
        kill_after_grace(grace, over, context.request_stop, context.report)

    if seconds is not None:
        threading.Thread(target=stop, args=(seconds,), daemon=True).start()
    try:
        yield
    finally:
        over.set()
