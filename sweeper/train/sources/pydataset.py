"""Source of a ``keras.utils.PyDataset``: batches by index in a seeded order, read ahead by threads.

``on_epoch_begin`` and ``on_epoch_end`` are called exactly once an epoch, also when the epoch ended
just before a checkpoint: what they change in the dataset is captured (`userstate`), never replayed,
because most of them draw from generators that other code draws from as well.

With one worker a batch is made when it is needed, so that what ``__getitem__`` draws from NumPy's
or Python's generator is in step with the captured state of these. With more, ``__getitem__`` must
depend on the index alone; a dataset that is seen to do otherwise is refused.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import keras
import numpy as np

from sweeper.errors import RestoreError, UncapturableError
from sweeper.train.codec import Json, NotPlainError, Tensors, decode, encode, tells_its_state
from sweeper.train.data import Batch
from sweeper.train.sources.arrays import permutation
from sweeper.train.sources.batches import BatchSpec, spec_of, standardize_batch
from sweeper.train.userstate.walk import Watch

_PEEKED = 2
"""Number of batches that define the form of all, as in ``model.fit``."""


class PyDatasetSource:
    """Batches of a ``PyDataset``.

    Args:
        dataset: The dataset. ``use_multiprocessing`` is read ahead by threads too.
        seed: For the order of the batches in a pass; None to keep their own.
        name: What the user calls these data, for errors.
        class_weight: Class index to weight; None for none.
        notice: Called with what cannot be checked.

    Raises:
        DataError: It has no batch, or batches of no known form.
        UncapturableError: It holds what no checkpoint can, or several workers would make batches
            that depend on more than their index.
    """

    by_epoch = False

    @property
    def reads_ahead(self) -> bool:
        """Return whether threads make batches ahead of the training."""
        return self._ahead

    def __init__(
        self,
        dataset: keras.utils.PyDataset,
        *,
        seed: np.random.SeedSequence | None,
        name: str,
        class_weight: Mapping[int, float] | None,
        notice: Callable[[str], None],
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._name = name
        self._class_weight = class_weight
        self._ahead = bool(
            dataset.workers > 1 or (dataset.workers > 0 and dataset.use_multiprocessing)
        )
        kind = type(dataset)
        shown = f"Data({name}=…), the PyDataset {kind.__qualname__}"
        self._shown = shown
        watch = Watch(shown, dataset) if self._ahead else None
        before = _global_random()
        self._spec = spec_of(
            [self._batch(index) for index in islice(self._indices(0), _PEEKED)], name
        )
        if watch is not None and (watch.changed() or before != _global_random()):
            msg = (
                f"{shown}: making a batch changes the dataset or draws from NumPy's or Python's "
                f"global generator, and with workers={dataset.workers} the batches would depend "
                "on which thread comes first; draw from np.random.default_rng([seed, index]) in "
                "__getitem__, or use workers=1"
            )
            raise UncapturableError(msg)
        self._between = watch
        if dataset.use_multiprocessing:
            notice(
                f"{shown}: with use_multiprocessing=True, {dataset.workers} threads read ahead "
                "instead of processes; the batches and their order are the same"
            )

    @property
    def steps(self) -> int | None:
        batches = self._dataset.num_batches
        return None if batches is None else int(batches)

    @property
    def endless(self) -> bool:
        return self.steps is None

    def spec(self) -> BatchSpec:
        """Return the form of the batches, from the first of them."""
        return self._spec

    def open(self, pass_: int, step: int) -> Iterator[Batch]:
        """Return the batches, as `DataSource.open`; an endless dataset has only pass 0."""
        indices = islice(self._indices(pass_), step, None)
        return self._read_ahead(indices) if self._ahead else map(self._batch, indices)

    def begin_epoch(self) -> None:
        self._dataset.on_epoch_begin()
        self._note_changes()

    def end_epoch(self) -> None:
        self._dataset.on_epoch_end()
        self._note_changes()

    def capture(self, name: str, tensors: Tensors) -> Json:
        if self._between is not None and self._between.changed():
            msg = (
                f"{self._shown}: making batches has changed the dataset, and with "
                f"workers={self._dataset.workers} it is read ahead of the training; use workers=1"
            )
            raise UncapturableError(msg)
        if not tells_its_state(self._dataset):
            return None
        try:
            return {"state": encode(self._dataset.get_state(), f"{name}/state", tensors)}
        except NotPlainError as error:
            msg = (
                f"{self._shown}: get_state() returned something that a checkpoint cannot hold: "
                f"{error}; return numbers, strings, arrays and containers of these"
            )
            raise UncapturableError(msg) from None

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        del name
        if (saved is not None) is not tells_its_state(self._dataset):
            msg = f"{self._shown} gained or lost get_state and set_state since the checkpoint"
            raise RestoreError(msg)
        if saved is not None:
            self._dataset.set_state(decode(saved["state"], tensors))
        self._note_changes()

    def describe(self) -> str:
        steps = "endless" if self.steps is None else f"{self.steps:,} batches"
        order = "in order" if self._seed is None else "shuffled every epoch"
        ahead = f", read ahead by {self._dataset.workers} threads" if self._ahead else ""
        return f"PyDataset {type(self._dataset).__qualname__}, {steps}, {order}{ahead}"

    def _note_changes(self) -> None:
        if self._between is not None:
            self._between = Watch(self._shown, self._dataset)

    def _indices(self, pass_: int) -> Iterator[int]:
        steps = self.steps
        if steps is None:
            return count()
        return map(int, permutation(self._seed, pass_, steps))

    def _batch(self, index: int) -> Batch:
        return standardize_batch(self._dataset[index], self._class_weight, self._name)

    def _read_ahead(self, indices: Iterator[int]) -> Generator[Batch]:
        window = max(self._dataset.max_queue_size, self._dataset.workers, 1)
        waiting: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(
            max(self._dataset.workers, 1), thread_name_prefix="sweeper-data"
        ) as threads:
            try:
                waiting.extend(threads.submit(self._batch, i) for i in islice(indices, window))
                while waiting:
                    batch = waiting.popleft().result()
                    waiting.extend(threads.submit(self._batch, i) for i in islice(indices, 1))
                    yield batch
            finally:
                for future in waiting:
                    future.cancel()


def _global_random() -> tuple[Any, bytes, int]:
    _, words, position, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(words).tobytes(), int(position)
