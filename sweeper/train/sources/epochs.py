"""Sources with a new iterator for each pass: a function ``epoch -> iterable of batches``, and data of grain.

The function must return the same batches for the same epoch. Then a resumed epoch draws and drops the
batches that were trained on already, and nothing needs to be captured.

Pass p of a finite ``MapDataset`` of grain is repetition p of its ``repeat()``, so its shuffles differ between epochs.
An ``IterDataset`` or a ``DataLoader`` has the same order in every pass, unless it repeats itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any

from sweeper.errors import DataError
from sweeper.support.shown import shown_value
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
            raise DataError(
                f"{self.name} is the function {self._shown}, which cannot be called with an "
                f"epoch ({error}); expected `epoch -> iterable of batches`, lambda epoch: …"
            ) from None
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
        iterable = self._function(pass_)
        if not isinstance(iterable, Iterable):
            raise DataError(
                f"{self.name}: {self._shown}({pass_}) returned {shown_value(iterable)}; expected an "
                "iterable of batches"
            )
        batches = iter(iterable)
        # Dropped now, not with the first batch, while random generators have their state of the opening.
        self.drop(batches, step, f"{self._shown}({pass_})")
        return (standardize_batch(batch, self.class_weight, self.name) for batch in batches)


def is_grain(data: object) -> bool:
    """Return whether ``data`` is a dataset or loader of grain, without importing grain."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(
        data, grain.MapDataset | grain.IterDataset | grain.DataLoader
    )


class GrainSource(EpochFunctionSource):
    """Batches of a grain dataset or loader, with a new iterator for each pass."""

    by_epoch = False

    def __init__(self, dataset: Any, options: SourceOptions) -> None:
        import grain

        length = len(dataset) if isinstance(dataset, grain.MapDataset) else None
        sampler = getattr(dataset, "_sampler", None)
        self._endless = (length or 0) >= sys.maxsize or (
            sampler is not None and getattr(sampler, "_num_epochs", 1) is None
        )

        def grain_pass(number: int) -> Iterable[Any]:
            if length is None or self._endless:
                return dataset  # type: ignore[no-any-return]
            begin = number * length
            return dataset.repeat()[begin : begin + length].to_iter_dataset()  # type: ignore[no-any-return]

        super().__init__(grain_pass, options)

    @property
    def endless(self) -> bool:
        return self._endless
