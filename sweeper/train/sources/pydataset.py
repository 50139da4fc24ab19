"""Source of a ``keras.utils.PyDataset``: batches by index in a seeded order, read ahead by threads.

``on_epoch_begin`` and ``on_epoch_end`` are called exactly once per epoch, also when a checkpoint
follows directly. Their changes of the dataset are captured (`sweeper.train.userstate`) and not
repeated, because they may draw from generators that other code uses as well.

With one worker, a batch is created when it is needed, so ``__getitem__`` may draw from NumPy's or
Python's global generator, whose state is captured. With several workers, ``__getitem__`` must depend
on the index alone; a dataset that is seen to do otherwise is refused.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import keras
import numpy as np

from sweeper.errors import RestoreError, UncapturableError
from sweeper.inspection.sorts import tells_its_state
from sweeper.train.codec import Encoder, Json, Tensors, decode, encode_own_state
from sweeper.train.data import Batch, DataSource, SourceOptions
from sweeper.train.sources.arrays import permutation
from sweeper.train.sources.batches import BatchSpec, spec_of, standardize_batch
from sweeper.train.userstate.walk import Watch


class PyDatasetSource(DataSource):
    """Batches of a ``PyDataset``; with ``use_multiprocessing`` it is read ahead by threads as well."""

    def __init__(self, dataset: keras.utils.PyDataset, options: SourceOptions) -> None:
        super().__init__(options)
        self._dataset = dataset
        self.reads_ahead = bool(
            dataset.workers > 1 or (dataset.workers > 0 and dataset.use_multiprocessing)
        )
        label = f"{self.name}, the PyDataset {type(dataset).__qualname__}"
        self._shown = label
        watch = Watch(label, dataset) if self.reads_ahead else None
        random_state = _global_random()
        self._spec = spec_of(map(self._batch, self._indices(0)), self.name)
        if watch is not None and (watch.changed() or random_state != _global_random()):
            raise UncapturableError(
                f"{label}: making a batch changes the dataset or draws from NumPy's or Python's "
                f"global generator, and with workers={dataset.workers} the batches would depend "
                "on which thread comes first; draw from np.random.default_rng([seed, index]) in "
                "__getitem__, or use workers=1"
            )
        self._between = watch
        if dataset.use_multiprocessing:
            self.notify(
                f"{label}: with use_multiprocessing=True, {dataset.workers} threads read ahead "
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
        """Return the form of the batches, from the first ones."""
        return self._spec

    def open(self, pass_: int, step: int) -> Iterator[Batch]:
        """Return the batches of ``pass_`` from ``step`` on; an endless dataset has only pass 0."""
        indices = islice(self._indices(pass_), step, None)
        return self._read_ahead(indices) if self.reads_ahead else map(self._batch, indices)

    def begin_epoch(self) -> None:
        self._dataset.on_epoch_begin()
        self._note_changes()

    def end_epoch(self) -> None:
        self._dataset.on_epoch_end()
        self._note_changes()

    def capture(self, name: str, tensors: Tensors) -> Json:
        if self._between is not None and self._between.changed():
            raise UncapturableError(
                f"{self._shown}: making batches has changed the dataset, and with "
                f"workers={self._dataset.workers} it is read ahead of the training; use workers=1"
            )
        if not tells_its_state(self._dataset):
            return None
        path = f"{name}/state"
        return {"state": encode_own_state(Encoder(tensors), self._dataset, self._shown, path)}

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        del name
        if (saved is not None) is not tells_its_state(self._dataset):
            raise RestoreError(
                f"{self._shown} gained or lost get_state and set_state since the checkpoint"
            )
        if saved is not None:
            self._dataset.set_state(decode(saved["state"], tensors))
        # The dataset's attributes are restored later, with the rest of the user's state.
        self._between = None

    def _note_changes(self) -> None:
        if self.reads_ahead:
            self._between = Watch(self._shown, self._dataset)

    def _indices(self, pass_: int) -> Iterator[int]:
        steps = self.steps
        if steps is None:
            return count()
        return map(int, permutation(self.seed, pass_, steps))

    def _batch(self, index: int) -> Batch:
        return standardize_batch(self._dataset[index], self.class_weight, self.name)

    def _read_ahead(self, indices: Iterator[int]) -> Generator[Batch]:
        self._note_changes()
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
                # Otherwise leaving the pool would wait for batches that nobody reads.
                for future in waiting:
                    future.cancel()


def _global_random() -> tuple[Any, bytes, int]:
    _, words, position, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(words).tobytes(), int(position)
