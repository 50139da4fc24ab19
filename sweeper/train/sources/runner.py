"""Reader of a data source over a training's epochs, and the base of runners.

Without ``steps_per_epoch`` every epoch is a pass. With it, an epoch may end inside a pass and a pass
inside an epoch, so the pass and the number of batches drawn from it are captured, with the source's own
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.errors import DataError
from sweeper.train.codec import Json, Tensors
from sweeper.train.data import Batch, DataSource


@dataclass
class _NextBatch:
    """Position of the next batch: number ``drawn`` of ``pass_``, number ``step`` of ``epoch``; the first epoch's number."""

    epoch: int = 0
    step: int = 0
    pass_: int = 0
    drawn: int = 0
    begun: int = -1
    ended: int = -1
    first_epoch: int = 0


class Reader:
    """The batches of every epoch, from any step on.

    An epoch with ``steps_per_epoch`` continues the previous epoch's pass if ``continues``; a validation starts
    a new one. Without ``steps_per_epoch`` an epoch is one pass.
    """

    def __init__(self, source: DataSource, steps_per_epoch: int | None, *, continues: bool) -> None:
        self.source = source
        self._limit = steps_per_epoch
        self.continues = continues and steps_per_epoch is not None and not source.by_epoch
        self._at = _NextBatch()
        self._iterator: Iterator[Batch] | None = None
        self._opened: Callable[[], None] = lambda: None

    @property
    def first_epoch(self) -> int:
        """Return the number of the training's first epoch, in which the first pass starts."""
        return self._at.first_epoch

    @first_epoch.setter
    def first_epoch(self, epoch: int) -> None:
        self._at.first_epoch = epoch

    @property
    def is_open(self) -> bool:
        """Return whether a pass has started and has not ended."""
        return self._iterator is not None

    def watch_openings(self, opened: Callable[[], None]) -> None:
        """Call ``opened`` just before each opening of a pass that a resume would read again."""
        self._opened = opened

    def reopen(self) -> None:
        """Open the pass now, at the position of the training."""
        self._iterator = self.source.open(self._at.pass_, self._at.drawn)

    @property
    def steps(self) -> int | None:
        """Return the number of batches in an epoch; None if unknown."""
        steps = self.source.steps
        if self.continues or self.source.endless:
            return self._limit
        if self._limit is None or steps is None:
            return steps
        return min(self._limit, steps)

    @property
    def limit(self) -> int | None:
        """Return the maximum number of batches in an epoch, whatever the source's length; None if unknown."""
        return self._limit if self.steps is None else self.steps

    def within(self, step: int) -> int:
        """Return ``step``, but at most the epoch's limit."""
        return step if self.limit is None else min(step, self.limit)

    def begin_epoch(self, epoch: int) -> None:
        """Call the source's hook for the start of ``epoch``, once per epoch also after a resume."""
        if self._at.begun != epoch:
            self.source.begin_epoch()
            self._at.begun = epoch

    def end_epoch(self, epoch: int) -> None:
        """Call the source's hook for the end of ``epoch``, once per epoch also after a resume."""
        if self._at.ended == epoch:
            return
        if not self.continues:
            self._close()
        self.source.end_epoch()
        self._at.ended = epoch

    def at(self, epoch: int, step: int) -> Iterator[Batch] | None:
        """Return the open iterator whose next batch is number ``step`` of ``epoch``; None at its end."""
        position = self._at
        if position.ended == epoch or (self._limit is not None and step >= self._limit):
            return None
        if (position.epoch, position.step) != (epoch, step):
            if not self.continues:
                self._close()
                position.pass_ = epoch
                position.drawn = step
            position.epoch = epoch
            position.step = step
        if self._iterator is None:
            self._opened()
            self._iterator = self.source.open(position.pass_, position.drawn)
        return self._iterator

    def drew(self, batches: int) -> None:
        """Record the number of batches that were drawn from the iterator."""
        self._at.step += batches
        self._at.drawn += batches

    def exhausted(self) -> bool:
        """Record that the iterator is exhausted; return whether the epoch continues with another pass."""
        position = self._at
        if position.drawn == 0:
            raise DataError(
                f"{self.source.name} yielded no batch in epoch {position.epoch}; expected at least one"
            )
        if not self.continues:
            return False
        self._close()
        position.pass_ += 1
        position.drawn = 0
        return True

    def next(self, epoch: int, step: int) -> Batch | None:
        """Return batch ``step`` of ``epoch``, or None at the epoch's end."""
        while (iterator := self.at(epoch, step)) is not None:
            for batch in iterator:
                self.drew(1)
                return batch
            if not self.exhausted():
                return None
        return None

    def capture(self, name: str, tensors: Tensors) -> Json:
        return {"place": asdict(self._at), "own": self.source.capture(name, tensors)}

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._close()
        self._at = _NextBatch(**saved["place"])
        self.source.restore(name, saved["own"], tensors)

    def _close(self) -> None:
        """Close a generator that reads ahead, to end its threads."""
        close = getattr(self._iterator, "close", None)
        if callable(close):
            close()
        self._iterator = None


Logs = Mapping[str, Any]

Shapes = Mapping[str, tuple[int | None, ...]]
"""The shape of each metric; None for an unknown size."""


class Runner:
    """Base of the runners of a model's steps over a source, from any step of any epoch.

    ``one`` is the `GraphStep` for one batch, whose ``log_shapes`` and ``calls_python`` are known after `trace`.
    ``spec`` is the `BatchSpec` of the batches, unless they are gathered from arrays.
    """

    def __init__(self, reader: Reader, one: Any, spec: Any = None) -> None:
        self.source = reader.source
        self.reader = reader
        self.one = one
        self._spec = spec

    def example(self) -> Any:
        """Return arrays with the shapes and dtypes of a batch; None if unknown."""
        return self._spec.example()

    def building_batch(self) -> Any:
        """Return a batch for a step that only creates variables; unknown sizes are 1."""
        return self._spec.zeros()

    def trace(self) -> None:
        """Build the graphs, and every variable that training will change."""
        self.one.trace(self._spec.signature)

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        """Run steps ``begin`` to ``end`` (exclusive) of ``epoch``; return their number and the logs of the last.

        A step beyond the epoch's limit is never run, even if ``end`` is larger: ``end`` depends on
        measured time, and results must not.
        """
        raise NotImplementedError
