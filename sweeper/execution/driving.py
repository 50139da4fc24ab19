"""A run on a cluster: place worker hosts there, and follow the study from its database.

The driver runs no trial and holds none: it may die at any moment, and the hosts go on to the end.
Another run of the same study finds them in the list of workers, places only what is missing, and
follows again. What stops the driver stops the study: a request in the database, which every worker
of it sees, on whichever machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper.errors import (
    DatabaseUnavailableError,
    ExecutionError,
    Interrupted,
    StorageError,
    TrialError,
    UsageError,
)
from sweeper.events import (
    AttemptEnded,
    AttemptStarted,
    EpochFinished,
    Event,
    Notice,
    TrainingStarted,
)
from sweeper.execution.auditing import refuse_inexact
from sweeper.execution.contact import DatabaseContact
from sweeper.execution.engines import Cluster, open_cluster, place
from sweeper.execution.placed import HostEnd, HostOrder, run_host
from sweeper.execution.preparing import PreparedStudy
from sweeper.execution.serving import opened, say_unfinished
from sweeper.execution.signals import stop_signals
from sweeper.paths import absolute_place
from sweeper.results import StudyStatus
from sweeper.storage.audits import Audits
from sweeper.storage.following import AttemptNews, StudyFollower
from sweeper.storage.repository import Repository, StopRequest

if TYPE_CHECKING:
    from sweeper.execution.sweep import SweepRequest

__all__ = ["drive"]

_LOOK = 0.5
"""Seconds between two looks at the study."""

_INTERRUPTED = Interrupted.exit_code


def drive(prepared: PreparedStudy, request: SweepRequest) -> StudyStatus:
    """Have a cluster run the study's trials, tell what happens, and return how the study stands.

    Raises:
        Interrupted: The study was stopped; every trial can be resumed.
        SweeperError: The cluster cannot be used, or its workers failed; or, where asked for, a
            trial.
    """
    prepared.close_runner()
    return _Drive(prepared, request).run()


class _Drive:
    def __init__(self, prepared: PreparedStudy, request: SweepRequest) -> None:
        self._prepared = prepared
        self._request = request
        self._repository = prepared.repository
        self._study = prepared.settings.name
        self._telling = threading.Lock()
        self._told_at: dict[int, float] = {}
        self._failed: TrialError | None = None

    def run(self) -> StudyStatus:
        request = self._request
        slots = self._prepared.slots(request.workers, self._tell)
        status = self._repository.status(self._study)
        self._tell(opened(self._prepared, request.storage, slots, request.resume_command))
        if status.finished >= status.target:
            return status
        follower = StudyFollower(self._repository, self._study)
        there = self._slots_there()
        if there:
            self._tell(
                Notice(
                    f"{min(there, slots)} of {slots} workers are there already, from an earlier "
                    f"run with --engine {request.engine}"
                )
            )
        cluster = None
        if slots > there:
            cluster = open_cluster(request.engine, request.engine_address, slots - there)
        try:
            placement = None if cluster is None else self._place(cluster, slots - there)
            with stop_signals(
                _TheStudy(self._repository, self._study, self._tell), self._tell, request.grace
            ):
                self._follow(follower, placement)
            return self._conclude(placement)
        finally:
            if cluster is not None:
                cluster.close()

    def _tell(self, event: Event) -> None:
        with self._telling:
            self._request.listener(event)

    def _slots_there(self) -> int:
        """Slots that hosts of an earlier driver lend."""
        workers = self._repository.workers(self._study)
        return sum(w.slots for w in workers if w.live and w.engine == self._request.engine)

    def _place(self, cluster: Cluster, slots: int) -> _Placement:
        request = self._request
        nodes = cluster.nodes
        if nodes < 1:
            msg = (
                f"the cluster of engine {request.engine!r} has no machines now, and {slots} workers "
                "were to be placed there; scale it to one or more, and run this again"
            )
            raise UsageError(msg)
        hosts = min(slots, nodes)
        source = self._prepared.source
        orders = [
            HostOrder(
                study=self._study,
                slots=slots // hosts + (number < slots % hosts),
                storage=self._repository.database.url_from_anywhere,
                runs_dir=str(request.runs_dir.absolute()),
                engine=request.engine,
                isolation=request.isolation,
                number=number,
                placed_from=socket.gethostname(),
                lease_seconds=request.lease_seconds,
                fail_fast=request.fail_fast,
                grace=request.grace,
                gpus=request.gpus,
                trials_per_gpu=request.trials_per_gpu,
                gpu_memory=request.gpu_memory,
                source=source if source.how == "pickled" else None,
                checkpoints=None
                if request.checkpoints is None
                else str(absolute_place(request.checkpoints)),
            )
            for number in range(hosts)
        ]
        placement = _Placement(cluster, orders)
        placement.start()
        return placement

    def _follow(self, follower: StudyFollower, placement: _Placement | None) -> None:
        """Tell what is new until the hosts that were placed have ended, or all workers have."""
        contact = DatabaseContact(self._tell)
        looked_for_workers = time.monotonic()
        last = False
        while True:
            try:
                self._look(follower)
                if last:
                    return
                if placement is not None:
                    last = not placement.is_alive()
                elif time.monotonic() - looked_for_workers > _LOOK:
                    looked_for_workers = time.monotonic()
                    workers = self._repository.workers(self._study)
                    last = not any(worker.live for worker in workers)
                contact.answered()
            except DatabaseUnavailableError as error:
                contact.failed(error, time.monotonic())
                if not error.passing or contact.given_up:
                    raise
            if not last:
                self._wait(placement)

    def _wait(self, placement: _Placement | None) -> None:
        if placement is None:
            time.sleep(_LOOK)
        else:
            placement.join(_LOOK)

    def _look(self, follower: StudyFollower) -> None:
        for news in follower.look():
            for event in self._events(news):
                self._tell(event)
            if news.fails_trial and self._request.fail_fast and self._failed is None:
                line = (news.error or "").strip().splitlines()[-1:]
                self._failed = TrialError(
                    f"trial {news.trial} failed, and the others were stopped because of "
                    f"--fail-fast: {''.join(line)}"
                )
                self._repository.request_stop(self._study, "drain")

    def _events(self, news: AttemptNews) -> list[Event]:
        events: list[Event] = []
        now = time.monotonic()
        if news.is_new:
            self._told_at[news.trial] = now
            events.append(AttemptStarted(news.trial, news.attempt))
        if news.begins:
            events.append(
                TrainingStarted(
                    news.trial,
                    dict(news.params),
                    self._prepared.settings.epochs,
                    0,
                    news.start_step or 0,
                    news.begins_after + 1,
                )
            )
        since = now - self._told_at.get(news.trial, now)
        for record in news.epochs:
            seconds = since / len(news.epochs)
            self._told_at[news.trial] = now
            events.append(EpochFinished(news.trial, record.epoch, 0, record.metrics, seconds))
        if news.outcome is not None:
            lines = (news.error or "").strip().splitlines()
            line = lines[-1] if lines else None
            events.append(AttemptEnded(news.trial, news.attempt, news.outcome, news.value, line))
        return events

    def _conclude(self, placement: _Placement | None) -> StudyStatus:
        if self._failed is not None:
            raise self._failed
        refuse_inexact(Audits(self._repository.database), self._study, accept=False)
        status = self._repository.status(self._study)
        if status.finished >= status.target:
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
            told = "; ".join(
                f"the one on {end.machine} ended with code {end.code} (see {end.log}):\n"
                f"{end.last_lines}"
                for end in broken
            )
            msg = f"{len(broken)} of {len(ends)} workers failed: {told}"
            raise ExecutionError(msg)
        if ends or self._repository.stop_requested(self._study) is not None:
            raise Interrupted(say_unfinished(status))
        msg = (
            f"no worker is left, and study {self._study!r} has {status.finished} of "
            f"{status.target} trials finished; `sweeper status {self._study}` shows more, and "
            "running it again places new workers"
        )
        raise ExecutionError(msg)


class _Placement(threading.Thread):
    """The worker hosts of one run, placed; alive until all have ended.

    Attributes:
        ends: How they ended.
        error: Why the cluster could not run them.
    """

    def __init__(self, cluster: Cluster, orders: list[HostOrder]) -> None:
        super().__init__(name="sweeper-placement", daemon=True)
        self.ends: tuple[HostEnd, ...] = ()
        self.error: BaseException | None = None
        self._cluster = cluster
        self._orders = orders

    def run(self) -> None:
        texts = [order.to_text() for order in self._orders]
        try:
            ended = place(
                self._cluster, run_host, texts, max(order.slots for order in self._orders)
            )
        except BaseException as error:
            # The driver's own thread tells it.
            self.error = error
            return
        self.ends = tuple(HostEnd.read(text) for text in ended)


@dataclass(frozen=True)
class _TheStudy:
    """What a signal to the driver stops: the study, on every machine."""

    repository: Repository
    study: str
    tell: Callable[[Event], None]

    def drain(self) -> None:
        self._ask("drain")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, how: StopRequest) -> None:
        try:
            self.repository.request_stop(self.study, how)
        except StorageError as error:
            self.tell(Notice(f"the workers could not be asked to stop: {error}"))
