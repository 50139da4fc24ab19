"""Sources that are iterated anew for each pass: a function ``epoch -> iterable of batches``, and data of grain.

The function must return the same batches for the same epoch. Then a resumed epoch draws and drops the
batches that were trained on already, and nothing needs to be captured.

Pass p of a finite ``MapDataset`` is repetition p of grain's ``repeat()``, so its shuffles differ between epochs. It is
read by index, so a resumed pass begins at its step. An ``IterDataset`` or a ``DataLoader`` has the same order in every
pass, unless it repeats itself, and a resumed pass is read again.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from sweeper.errors import DataError
from sweeper.train.data import Batch, DataSource, SourceOptions
from sweeper.train.sources.batches import BatchSpec, spec_of, standardize_batch


class EpochFunctionSource(DataSource):
    """Batches from a function of the epoch, counted from 0; their number may differ between epochs."""

    steps = None
    by_epoch = True
    is_read_again = True

    def __init__(self, function: Callable[[int], Iterable[Any]], options: SourceOptions) -> None:
        super().__init__(options)
        self._function = function
        try:
            inspect.signature(function).bind(0)
        except TypeError as error:
            msg = (
                f"Data({self.name}=…) is the function {self._shown}, which cannot be called with an "
                f"epoch ({error}); expected `epoch -> iterable of batches`, lambda epoch: …"
            )
            raise DataError(msg) from None
        except ValueError:
            pass  # the signature of a function in C is unknown

    @property
    def _shown(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def spec(self) -> BatchSpec:
        """Return the form of the batches, from the first of epoch 0."""
        batches = self.open(0, 0)
        try:
            return spec_of(batches, self.name)
        finally:
            batches.close()

    def open(self, pass_: int, step: int) -> Generator[Batch]:
        """Return the batches of epoch ``pass_``; the first ``step`` batches are drawn and dropped."""
        epoch = pass_
        made = self._function(epoch)
        if not isinstance(made, Iterable):
            msg = (
                f"Data({self.name}=…): {self._shown}({epoch}) returned {made!r}; expected an "
                "iterable of batches"
            )
            raise DataError(msg)
        batches = iter(made)
        # Dropped now, not with the first batch, while random generators have their state of the opening.
        self.drop(batches, step, f"{self._shown}({epoch})")
        return (standardize_batch(batch, self.class_weight, self.name) for batch in batches)


_DISCARDS = ("Filter", "FlatMap")


def is_grain(given: object) -> bool:
    """Return whether ``given`` is data of grain, without importing grain."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(
        given, grain.MapDataset | grain.IterDataset | grain.DataLoader
    )


class GrainSource(DataSource):
    """Batches of a grain dataset or loader."""

    def __init__(self, dataset: Any, options: SourceOptions) -> None:
        super().__init__(options)
        import grain

        self._dataset = dataset
        self._by_index = isinstance(dataset, grain.MapDataset)
        self._length = len(dataset) if self._by_index else None
        self.is_read_again = not self._by_index or _discards(dataset)

    @property
    def steps(self) -> int | None:
        return None if self.is_read_again or self.endless else self._length

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
        iterator = self._iterate(pass_, 0 if self.is_read_again else step)
        if self.is_read_again:
            self.drop(iterator, step, "the grain dataset")
        return map(self._standardize, iterator)

    def _iterate(self, pass_: int, step: int = 0) -> Iterator[Any]:
        dataset, length = self._dataset, self._length
        if length is None:
            return iter(dataset)
        if not self.endless:
            begin = pass_ * length
            dataset = dataset.repeat()[begin + step : begin + length]
        elif step:
            dataset = dataset[step:]
        return iter(dataset.to_iter_dataset())

    def _standardize(self, batch: Any) -> Batch:
        return standardize_batch(batch, self.class_weight, self.name)


def _discards(dataset: Any) -> bool:
    """Return whether the length of a ``MapDataset`` includes elements that its iterator skips."""
    return any(part in type(dataset).__name__ for part in _DISCARDS) or any(
        map(_discards, dataset.parents)
    )
