"""A trial of one process, in the form of one that has several: nothing is agreed, nobody waited for."""

from __future__ import annotations

from typing import Any

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.training.loop.plan import Observer
from sweeper.training.replicas.lockstep import Alone
from sweeper.training.replicas.multiworker import MultiWorker


class OnlyProcess(Alone):
    """The one process of a trial."""

    task = None

    def check(self, strategy: object, trial: Any, *, rehearsed: bool) -> None:
        """Refuse a `MultiWorker`, whose trials train in several; a rehearsal does with one.

        Raises:
            FactoryError: It is one.
        """
        if isinstance(strategy, MultiWorker) and not rehearsed:
            strategy(trial)

    def resume_from(self, loaded: LoadedCheckpoint | None) -> LoadedCheckpoint | None:
        return loaded

    def watching(self, observer: Observer) -> Observer:
        return observer

    def gather(self, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def finish(self, step: int) -> None:
        """Nobody else has to come to the end."""
