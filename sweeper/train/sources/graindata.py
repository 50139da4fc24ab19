"""Source of a grain ``MapDataset``, ``IterDataset`` or ``DataLoader``, with its iterator's state.

Grain's iterators have ``get_state()`` and ``set_state()`` for their position. Pass p of a finite
``MapDataset`` is repetition p of grain's ``repeat()``, so its shuffles differ between epochs. An
``IterDataset`` or a ``DataLoader`` has the same order in every pass, unless it repeats itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.errors import RestoreError
from sweeper.train.codec import Encoder, Json, Tensors, decode, encode_own_state
from sweeper.train.data import Batch, DataSource, SourceOptions
from sweeper.train.sources.batches import BatchSpec, spec_of, standardize_batch

_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")
_DISCARDS = ("Filter", "FlatMap")


def is_grain(given: object) -> bool:
    """Return whether ``given`` is data of grain, without importing grain."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(
        given, grain.MapDataset | grain.IterDataset | grain.DataLoader
    )


class GrainSource(DataSource):
    """Batches of a grain dataset or loader.

    Args:
        dataset: Dataset or loader of batches.
        options: Options of the source.
    """

    def __init__(
        self,
        dataset: Any,
        options: SourceOptions,
    ) -> None:
        super().__init__(options)
        import grain

        self._dataset = dataset
        self._by_index = isinstance(dataset, grain.MapDataset)
        self._length = len(dataset) if self._by_index else None
        self._iterator: Any = None
        self._pass = 0
        self._restored: tuple[int, Any] | None = None

    @property
    def steps(self) -> int | None:
        if self._length is None or self.endless or _discards(self._dataset):
            return None
        return self._length

    @property
    def endless(self) -> bool:
        if self._length is not None:
            return self._length >= sys.maxsize
        sampler = getattr(self._dataset, "_sampler", None)
        return sampler is not None and getattr(sampler, "_num_epochs", 1) is None

    def spec(self) -> BatchSpec:
        """Return the form of the batches, from the first of pass 0."""
        return spec_of(map(self._standardize, self._iterate(0)), self.name)

    def open(self, pass_: int, step: int) -> Iterator[Batch]:
        iterator = self._iterate(pass_)
        restored, self._restored = self._restored, None
        if step and restored is not None and restored[0] == pass_:
            try:
                iterator.set_state(_same_addresses(restored[1], iterator))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                msg = (
                    f"Data({self.name}=…): the position in the checkpoint does not fit the grain "
                    f"dataset: {error}; undo its change"
                )
                raise RestoreError(msg) from None
        else:
            self.drop(iterator, step, "the grain dataset")
        self._iterator, self._pass = iterator, pass_
        return map(self._standardize, iterator)

    def capture(self, name: str, tensors: Tensors) -> Json:
        if self._iterator is None:
            return None
        shown = f"Data({self.name}=…), the grain iterator"
        state = encode_own_state(Encoder(tensors), self._iterator, shown, f"{name}/state")
        return {"pass": self._pass, "state": state}

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        del name
        self._iterator = self._restored = None
        if saved is not None:
            state = decode(saved["state"], tensors)
            self._restored = (saved["pass"], state)

    def _iterate(self, pass_: int) -> Any:
        if not self._by_index:
            return iter(self._dataset)
        dataset = self._dataset
        if not self.endless:
            length = len(dataset)
            dataset = dataset.repeat()[pass_ * length : (pass_ + 1) * length]
        return iter(dataset.to_iter_dataset())

    def _standardize(self, batch: Any) -> Batch:
        return standardize_batch(batch, self.class_weight, self.name)


def _discards(dataset: Any) -> bool:
    """Return whether the length of a ``MapDataset`` includes elements that its iterator skips."""
    return any(part in type(dataset).__name__ for part in _DISCARDS) or any(
        map(_discards, dataset.parents)
    )


def _same_addresses(state: Any, fresh: Any) -> Any:
    """Return a loader's state with the addresses of this process in the ``repr`` of its data source."""
    now = fresh.get_state()
    if not isinstance(state, bytes) or not isinstance(now, bytes):
        return state
    addresses = _ADDRESS.findall(now)
    if len(addresses) != len(_ADDRESS.findall(state)):
        return state
    given = iter(addresses)
    return _ADDRESS.sub(lambda _: next(given), state)
