"""Driver of a run on a cluster: placement of worker hosts, and progress from the database.

The driver runs no trial: if it dies, the hosts complete the study. Another run of the same study finds
the hosts in the table of workers, places only the missing ones, and reports progress again. A signal to
the driver stops the study on every machine, by a request in the database.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from sweeper.db.repository import StopRequest
from sweeper.errors import (
    DatabaseUnavailableError,
    ExecutionError,
    Interrupted,
    StorageError,
    TrialError,
    UsageError,
)
from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    EpochFinished,
    Event,
    Notice,
    TrainingStarted,
)
from sweeper.records.results import Outcome, StudyStatus, TrialStatus
from sweeper.run.auditing import refuse_inexact
from sweeper.run.cluster.engines import Cluster, open_cluster, run_tasks
from sweeper.run.cluster.host import HostEnd, run_host, write_spec
from sweeper.run.options import HostSpec, RunRequest
from sweeper.run.prepared_study import PreparedStudy
from sweeper.run.serving import opened, say_unfinished
from sweeper.run.signals import stop_signals
from sweeper.run.worker.database_health import DatabaseHealth
from sweeper.support.paths import absolute_location

_LOOK = 0.5
"""Seconds between two queries of the study's status."""

_LOOK_SHARE = 20
"""Minimum pause after a query, as a multiple of the query's duration."""

_INTERRUPTED = Interrupted.exit_code


def drive(prepared: PreparedStudy, request: RunRequest) -> StudyStatus:
    """Run the study's trials on a cluster, report events, and return the study's status.

    Raises:
        Interrupted: The study was stopped; every trial can be resumed.
        SweeperError: The cluster cannot be used, or its workers failed; with ``fail_fast``, also if a
            trial failed.
    """
    prepared.close_runner()
    return _Drive(prepared, request).run()


def changes_of(was: TrialStatus | None, now: TrialStatus, clock: EpochClock) -> list[Event]:
    """Return the events of a trial between two polls, of which epochs only the latest.

    ``was`` is None for a trial that has begun since the former poll.
    """
    number, events = now.number, list[Event]()
    before, epoch = (0, 0) if was is None else (was.attempts, was.epoch)
    if now.attempts > before:
        events.append(AttemptStarted(number, now.attempts))
    # The status does not say when a first attempt begins to train; its first epoch does.
    begins = now.epoch > 0 and (now.attempts > before or epoch == 0)
    seconds = clock.seconds_of(number, epochs=max(now.epoch - epoch, 1))
    if begins:
        events.append(TrainingStarted(number, now.params, now.epochs or 0, 0, epoch, epoch))
    if now.epoch > epoch:
        events.append(EpochFinished(number, now.epoch - 1, 0, now.metrics, seconds))
    ended = now.state not in ("running", "waiting")
    if ended and (was is None or was.state == "running" or now.attempts > before):
        outcome = cast("Outcome", now.state)
        events.append(AttemptEnded(number, now.attempts, outcome, now.value, now.error))
    return events


class EpochClock:
    """Clock of the mean duration of a trial's epochs between two polls that saw new ones."""

    def __init__(self) -> None:
        self._reported: dict[int, float] = {}

    def seconds_of(self, trial: int, *, epochs: int) -> float:
        """Return the seconds since the last call for this trial, divided by ``epochs``."""
        now = time.monotonic()
        since, self._reported[trial] = now - self._reported.get(trial, now), now
        return since / epochs


class _Drive:
    def __init__(self, prepared: PreparedStudy, request: RunRequest) -> None:
        self._prepared = prepared
        self._request = request
        self._repository = prepared.repository
        self._study = prepared.settings.name
        self._telling = threading.Lock()
        self._clock = EpochClock()
        self._failed: TrialError | None = None

    def run(self) -> StudyStatus:
        request = self._request
        slots = self._prepared.slots(request.options.slots or 1, self._tell)
        status = self._repository.status(self._study)
        self._tell(opened(self._prepared, request.options.storage, slots, request.resume_command))
        if status.is_over:
            return status
        there = sum(  # slots that an earlier driver has placed
            worker.slots
            for worker in self._repository.workers(self._study)
            if worker.live and worker.engine == request.engine
        )
        if there:
            self._tell(
                Notice(
                    f"{min(there, slots)} of {slots} workers are already running, from an earlier "
                    f"run with --engine {request.engine}"
                )
            )
        cluster = None
        if slots > there:
            cluster = open_cluster(request.engine, request.engine_address, slots - there)
        try:
            placement = None if cluster is None else self._start_hosts(cluster, slots - there)
            with stop_signals(self._request_stop, self._tell, request.options.grace):
                self._follow(status, placement)
            return self._conclude(placement)
        finally:
            if cluster is not None:
                cluster.close()

    def _request_stop(self, how: StopRequest) -> None:
        """Stop all workers of the study, on every machine."""
        try:
            self._repository.request_stop(self._study, how)
        except StorageError as error:
            self._tell(Notice(f"the workers could not be asked to stop: {error}"))

    def _tell(self, event: Event) -> None:
        with self._telling:
            self._request.listener(event)

    def _start_hosts(self, cluster: Cluster, slots: int) -> _Placement:
        request = self._request
        nodes = cluster.nodes
        if nodes < 1:
            msg = (
                f"the cluster of engine {request.engine!r} has no machines now, so {slots} "
                "workers cannot be placed there; scale it to one or more, and run this again"
            )
            raise UsageError(msg)
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
        placement = _Placement(cluster, specs)
        placement.start()
        return placement

    def _follow(self, before: StudyStatus, placement: _Placement | None) -> None:
        """Report changes of the status until the placed hosts, or all workers, have ended."""
        contact = DatabaseHealth(self._tell)
        known = {trial.number: trial for trial in before.trials}
        pause = _LOOK
        last = False
        while True:
            began = time.monotonic()
            try:
                found = self._repository.status(self._study).trials
                self._report(known, found)
                known = {trial.number: trial for trial in found}
                if last:
                    return
                if placement is not None:
                    last = not placement.is_alive()
                else:
                    last = not any(w.live for w in self._repository.workers(self._study))
                contact.answered()
            except DatabaseUnavailableError as error:
                contact.failed(error, time.monotonic())
                if not error.passing or contact.given_up:
                    raise
            pause = max(_LOOK, _LOOK_SHARE * (time.monotonic() - began))
            if last:
                continue
            if placement is None:
                time.sleep(pause)
            else:
                placement.join(pause)

    def _report(self, before: Mapping[int, TrialStatus], found: Sequence[TrialStatus]) -> None:
        for trial in found:
            was = before.get(trial.number)
            if trial == was:
                continue
            for event in changes_of(was, trial, self._clock):
                self._tell(event)
            if trial.state == "failed" and self._request.options.fail_fast and self._failed is None:
                self._failed = TrialError(
                    f"trial {trial.number} failed, and the others were stopped because of "
                    f"--fail-fast: {trial.error or ''}"
                )
                self._repository.request_stop(self._study, "drain")

    def _conclude(self, placement: _Placement | None) -> StudyStatus:
        if self._failed is not None:
            raise self._failed
        refuse_inexact(self._repository.audits, self._study, accept=False)
        status = self._repository.status(self._study)
        if status.is_over:
            return status
        if placement is not None and placement.error is not None:
            msg = (
                f"engine {self._request.engine!r} could not run its workers: "
                f"{type(placement.error).__name__}: {placement.error}"
            )
            raise ExecutionError(msg) from placement.error
        ends = () if placement is None else placement.ends
        broken = [end for end in ends if end.code not in (0, _INTERRUPTED)]
        if broken:
            ends_shown = "; ".join(
                f"the one on {end.machine} ended with code {end.code} (see {end.log}):\n"
                f"{end.last_lines}"
                for end in broken
            )
            msg = f"{len(broken)} of {len(ends)} workers failed: {ends_shown}"
            raise ExecutionError(msg)
        if ends or self._repository.stop_requested(self._study) is not None:
            raise Interrupted(say_unfinished(status))
        msg = (
            f"all workers have ended, and study {self._study!r} has {status.finished} of "
            f"{status.target} trials finished; `sweeper status {self._study!r}` shows more, and "
            "another run starts new workers"
        )
        raise ExecutionError(msg)


class _Placement(threading.Thread):
    """Thread that places the worker hosts of a run and waits for them.

    Attributes:
        ends: Ends of the hosts; empty while they run.
        error: Error with which the cluster could not run them; None without an error.
    """

    def __init__(self, cluster: Cluster, specs: list[HostSpec]) -> None:
        super().__init__(name="sweeper-placement", daemon=True)
        self.ends: tuple[HostEnd, ...] = ()
        self.error: BaseException | None = None
        self._cluster = cluster
        self._specs = specs

    def run(self) -> None:
        texts = [write_spec(spec) for spec in self._specs]
        slots = max(spec.options.slots or 1 for spec in self._specs)
        try:
            ended = run_tasks(self._cluster, run_host, texts, slots)
        except BaseException as error:
            # The driver's main thread raises it.
            self.error = error
            return
        self.ends = tuple(HostEnd.read(text) for text in ended)
