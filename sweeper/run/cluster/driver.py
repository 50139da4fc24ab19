"""Driver of a run on a cluster: placement of worker hosts, and progress from the database.

The driver runs no trial: if it dies, the hosts complete the study. Another run of the same study finds
the hosts in the table of workers, places only the missing ones, and reports progress again. A signal to
the driver stops the study on every machine, by a request in the database.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import cast

from sweeper.db.repository import StopRequest
from sweeper.errors import (
    ExecutionError,
    Interrupted,
    StorageError,
    TrialError,
    UsageError,
)
from sweeper.records import events
from sweeper.records.results import Outcome, StudyStatus, TrialStatus
from sweeper.run.cluster.engines import Cluster, DaskCluster, RayCluster, run_tasks
from sweeper.run.cluster.host import HostEnd, run_host, write_spec
from sweeper.run.options import HostSpec, RunRequest
from sweeper.run.prepared_study import PreparedStudy
from sweeper.run.serving import describe_unfinished, opened
from sweeper.run.signals import stop_signals
from sweeper.run.stored_study import refuse_inexact
from sweeper.run.worker.database_health import DatabaseHealth
from sweeper.support.paths import absolute_location
from sweeper.support.shown import shown_error

_LOOK = 0.5
"""Seconds between two queries of the study's progress."""

_MOST_OF_A_CORE = 0.1
"""Maximum share of a core for these queries, whose cost grows with the number of trials."""

_ENDED = ("complete", "pruned", "failed")
_INTERRUPTED = Interrupted.exit_code

_HostEnds = Future[list[HostEnd]]
"""Ends of the worker hosts of a placement, or the error with which the cluster could not run them."""


@dataclass(frozen=True)
class _Placement:
    """Worker hosts with ``slots`` that were placed when ``changes`` changes of trials had been seen."""

    ends: _HostEnds
    slots: int
    changes: int

    @property
    def failed(self) -> bool:
        """Return whether the engine has given up the hosts, as some engines do if they lose one."""
        return self.ends.done() and isinstance(self.ends.exception(), Exception)


def drive(prepared: PreparedStudy, request: RunRequest) -> StudyStatus:
    """Run the study's trials on a cluster, report events, and return the study's status.

    Raises:
        Interrupted: The study was stopped; every trial can be resumed.
        SweeperError: The cluster cannot be used, its workers failed, or with ``fail_fast`` a trial.
    """
    # No trial runs in this process; a cluster has no inline ones.
    if not callable(prepared.runner):
        prepared.runner.close()
    return _Drive(prepared, request).run()


class _Drive:
    def __init__(self, prepared: PreparedStudy, request: RunRequest) -> None:
        self._prepared = prepared
        self._request = request
        self._repository = prepared.study.repository
        self._study = prepared.study.settings.name
        self._listener = request.listener
        self._seen: dict[int, tuple[TrialStatus, float]] = {}
        self._at_start: dict[int, TrialStatus] = {}
        self._failed: TrialError | None = None
        self._cluster: Cluster | None = None
        self._placements: list[_Placement] = []
        self._others: dict[str, int] = {}
        """Slots of the workers for whose ends this driver does not wait, by their keys: those of an earlier driver, and
        those that were left when a placement failed."""
        self._slots = 0
        """Slots that are to be there in all."""
        self._waits_for: str | None = None
        """The last notice of a cluster without machines, until it has some."""
        self._changes = 0
        """Changes of trials that were seen since the start."""

    def run(self) -> StudyStatus:
        request = self._request
        refuse_inexact(self._repository, self._study, accept=request.options.accept_inexact)
        slots = self._prepared.slots(request.options.slots or 1, self._listener)
        self._slots = slots
        status = self._repository.status(self._study)
        self._listener(
            opened(self._prepared, request.options.storage, slots, request.resume_command)
        )
        if status.is_over:
            return status
        finished = [trial for trial in status.trials if trial.state in _ENDED]
        self._seen = {trial.number: (trial, time.monotonic()) for trial in finished}
        self._at_start = {trial.number: trial for trial in status.trials}
        self._others = self._live_slots()
        placed = sum(self._others.values())
        if placed:
            self._listener(
                events.Notice(
                    f"{min(placed, slots)} of {slots} workers are already running, from an earlier "
                    f"run with --engine {request.engine}"
                )
            )
        with contextlib.ExitStack() as clusters:
            self._clusters = clusters
            if slots > placed:
                self._start_workers(slots - placed)
            with stop_signals(self._request_stop, self._listener, request.options.grace):
                self._follow()
            return self._conclude()

    def _start_workers(self, slots: int) -> None:
        """Start hosts with ``slots`` on the cluster; connect to it before the first ones."""
        if self._cluster is None:
            kind = DaskCluster if self._request.engine == "dask" else RayCluster
            self._cluster = kind(self._request.engine_address, slots)
            self._clusters.callback(self._cluster.close)
        hosts = self._start_hosts(self._cluster, slots)
        self._placements.append(_Placement(hosts, slots, self._changes))

    def _live_slots(self) -> dict[str, int]:
        """Return the slots of the engine's workers whose lease has not ended, by their keys."""
        return {
            worker.key: worker.slots
            for worker in self._repository.workers(self._study)
            if worker.live and worker.engine == self._request.engine
        }

    def _replace_lost(self) -> bool:
        """Start hosts in the place of workers that are lost; return whether there were any.

        The lease of a worker whose machine has just gone has not ended when it is counted, and some engines end
        the workers of all machines when they lose one. So workers of an earlier run and of a placement that failed
        are watched until they are gone. A placement without any progress of a trial is not repeated.
        """
        failed = any(p.failed and p.changes < self._changes for p in self._placements)
        if not failed and not self._others and self._waits_for is None:
            return False
        live = self._live_slots()
        if self._repository.stop_requested(self._study) is not None:
            return False
        if failed:
            # Which worker belongs to which placement is not known; all that are left are watched.
            self._placements = []
            self._others = live
        self._others = {key: slots for key, slots in self._others.items() if key in live}
        placed = sum(placement.slots for placement in self._placements)
        missing = self._slots - placed - sum(self._others.values())
        if missing <= 0:
            return failed
        workers = "1 worker is" if missing == 1 else f"{missing} workers are"
        if self._cluster is not None and self._cluster.nodes < 1:
            self._notify_once(f"{workers} lost, and the cluster has no machines; waiting for one")
            return True
        self._listener(events.Notice(f"{workers} lost; placing as many again"))
        self._waits_for = None
        self._start_workers(missing)
        return True

    def _notify_once(self, text: str) -> None:
        if text != self._waits_for:
            self._listener(events.Notice(text))
        self._waits_for = text

    def _request_stop(self, how: StopRequest) -> None:
        """Stop all workers of the study, on every machine."""
        try:
            self._repository.request_stop(self._study, how)
        except StorageError as error:
            self._listener(events.Notice(f"the workers could not be asked to stop: {error}"))

    def _start_hosts(self, cluster: Cluster, slots: int) -> _HostEnds:
        request = self._request
        nodes = cluster.nodes
        if nodes < 1:
            raise UsageError(
                f"the cluster of engine {request.engine!r} has no machines now, so {slots} "
                "workers cannot be placed there; scale it to one or more, and run this again"
            )
        hosts = min(slots, nodes)
        source = self._prepared.source
        options = replace(
            request.options,
            storage=self._repository.database.url_from_anywhere,
            runs_dir=request.options.runs_dir.absolute(),
            checkpoints=absolute_location(request.options.checkpoints),
            # The database already records that differences were accepted.
            accept_inexact=False,
        )
        specs = [
            HostSpec(
                study=self._study,
                options=replace(options, slots=slots // hosts + (number < slots % hosts)),
                engine=request.engine,
                number=number,
                placed_from=socket.gethostname(),
                pickled=source if source.how == "pickled" else None,
            )
            for number in range(hosts)
        ]
        return _start_hosts(cluster, specs)

    def _follow(self) -> None:
        """Report events until the placed hosts, or all workers, have ended."""
        health = DatabaseHealth(self._listener)
        last = False
        while not last:
            began = time.monotonic()
            last = health.retrying(self._look, lambda: health.given_up)
            pause = max(_LOOK, (time.monotonic() - began) / _MOST_OF_A_CORE)
            if self._placements:
                wait([placement.ends for placement in self._placements], pause)
            elif not last:
                time.sleep(pause)

    def _look(self) -> bool:
        """Report what has changed since the last look; return whether the hosts, or all workers, had ended."""
        # Before the status is read, so that the last look reports all that happened.
        placed = self._placements
        over = all(p.ends.done() for p in placed) if placed else not self._any_live()
        status = self._repository.status(self._study)
        if not over and status.is_over:
            # An engine that was cut off from a host may wait for its task for ever.
            over = not self._any_live()
        time_now = time.monotonic()
        for trial in status.trials:
            earlier, since = self._seen.get(trial.number, (None, time_now))
            if trial == earlier:
                continue
            self._seen[trial.number] = trial, time_now
            self._changes += trial != self._at_start.get(trial.number)
            for event in progress_between(earlier, trial, time_now - since):
                self._listener(event)
            if trial.state == "failed" and self._request.options.fail_fast and not self._failed:
                self._failed = TrialError(
                    f"trial {trial.number} failed, and the others were stopped because of "
                    f"--fail-fast: {trial.error}"
                )
                self._repository.request_stop(self._study, "drain")
        if not status.is_over and self._replace_lost():
            over = False
        return over

    def _any_live(self) -> bool:
        return any(worker.live for worker in self._repository.workers(self._study))

    def _conclude(self) -> StudyStatus:
        if self._failed is not None:
            raise self._failed
        # An audit on any machine may have stopped the study.
        refuse_inexact(self._repository, self._study, accept=False)
        status = self._repository.status(self._study)
        if status.is_over:
            return status
        errors = [placement.ends.exception() for placement in self._placements]
        error = next(filter(None, errors), None)
        if error is not None:
            raise ExecutionError(
                f"engine {self._request.engine!r} could not run its workers: {shown_error(error)}. "
                f"{describe_unfinished(status)}; another run of it starts new workers"
            ) from error
        ends = [end for placement in self._placements for end in placement.ends.result()]
        broken = [end for end in ends if end.code not in (0, _INTERRUPTED)]
        if broken:
            ends_shown = "; ".join(
                f"the one on {end.machine} ended with code {end.code} (see {end.log}):\n"
                f"{end.last_lines}"
                for end in broken
            )
            raise ExecutionError(f"{len(broken)} of {len(ends)} workers failed: {ends_shown}")
        if ends or self._repository.stop_requested(self._study) is not None:
            raise Interrupted(describe_unfinished(status))
        raise ExecutionError(
            f"all workers have ended, and study {self._study!r} has {status.finished} of "
            f"{status.target} trials finished; `sweeper status {self._study!r}` shows more, and "
            "another run starts new workers"
        )


def progress_between(
    before: TrialStatus | None, trial: TrialStatus, seconds: float
) -> Iterator[events.Event]:
    """Yield the events of a trial between two looks, ``seconds`` after its last change; of several epochs, the last.

    ``before`` is its status at the earlier look; None if it had not started.
    """
    number = trial.number
    state = trial.state
    attempts, epoch = (0, 0) if before is None else (before.attempts, before.epoch)
    is_new = trial.attempts > attempts
    if is_new:
        yield events.AttemptStarted(number, trial.attempts)
    if trial.params and (is_new or before is None or not before.params):
        yield events.TrainingStarted(number, dict(trial.params), trial.epochs or 0, 0, 0, epoch)
    if trial.epoch > epoch:
        epoch_seconds = seconds / (trial.epoch - epoch)
        yield events.EpochFinished(number, trial.epoch - 1, 0, trial.metrics, epoch_seconds)
    if state not in ("running", "waiting") and (is_new or before is None or before.state != state):
        outcome = cast("Outcome", state)
        yield events.AttemptEnded(number, trial.attempts, outcome, trial.value, trial.error)


def _start_hosts(cluster: Cluster, specs: list[HostSpec]) -> _HostEnds:
    """Place worker hosts from a daemon thread; the result has their ends once they have ended."""
    ends: _HostEnds = Future()
    texts = [write_spec(spec) for spec in specs]
    slots = max(spec.options.slots or 1 for spec in specs)

    def run_hosts() -> None:
        try:
            ends.set_result(run_tasks(cluster, run_host, texts, slots))
        except BaseException as error:
            # The driver's main thread raises it.
            ends.set_exception(error)

    threading.Thread(target=run_hosts, name="sweeper-placement", daemon=True).start()
    return ends
