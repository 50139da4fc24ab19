"""Short form of a trial for `sweeper check`, and a digest of its validation samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xxhash

from sweeper.checkpoint.tensors import as_array
from sweeper.errors import CheckpointError
from sweeper.replay.reports import Lengths
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.sources.arrays import ArraySource
from sweeper.train.sources.opening import open_sources

_MOST_STEPS = 60
"""Steps of an epoch above which it is shortened."""

_SHORT_EPOCH = 6
_MOST_VALIDATION = 24
_SHORT_VALIDATION = 4
_WORD = (1 << 64) - 1


def _as_numpy(value: Any) -> Any:
    try:
        return np.ascontiguousarray(as_array("", value))
    except CheckpointError:
        return np.asarray(value)


def shortened(plan: TrainingPlan) -> tuple[TrainingPlan, Lengths]:
    """Return the plan with shortened epochs, and their true lengths.

    Some validation follows one of its epochs if one follows an epoch of the study.
    """
    train, validation = open_sources(plan.data, plan.order_seed, _unheard)
    steps = plan.data.steps_per_epoch or train.steps
    batches = 0
    if validation is not None:
        batches = plan.data.validation_steps or validation.steps or 0
    data = plan.data
    if validation is not None and not any(map(data.validates_after, range(plan.epochs))):
        data = replace(data, validation_freq=1)
    epoch_steps = _SHORT_EPOCH if steps is None or steps > _MOST_STEPS else None
    validation_steps = None
    if validation is not None:
        unknown = plan.data.validation_steps is None and validation.steps is None
        if unknown or batches > _MOST_VALIDATION:
            validation_steps = _SHORT_VALIDATION
    if epoch_steps is not None:
        data = replace(data, steps_per_epoch=epoch_steps)
    if validation_steps is not None:
        data = replace(data, validation_steps=validation_steps)
    return replace(plan, data=data), Lengths(steps, batches, epoch_steps, validation_steps)


def validation_rows(plan: TrainingPlan) -> str | None:
    """Return a digest of a plan's validation samples, which are arrays, independent of their order.

    None without a validation, or if the data are no arrays.
    """
    _, source = open_sources(plan.data, plan.order_seed, _unheard)
    if not isinstance(source, ArraySource):
        return None
    limit = plan.data.validation_steps
    samples = None if limit is None else limit * source.batch_size
    arrays = [array[:samples] for array in _arrays_in(source.arrays)]
    if len({len(array) if array.ndim else 0 for array in arrays}) != 1:
        # Ragged or sparse: what belongs to one sample is not known, so all of them are one.
        arrays = [array[np.newaxis] for array in arrays]
    rows = [0] * len(arrays[0])
    for array in arrays:
        if array.dtype.hasobject:
            parts = [repr(np.asarray(row, object).tolist()).encode() for row in array]
        else:
            parts = [row.tobytes() for row in array]
        rows = [
            xxhash.xxh3_64_intdigest(part, seed=row) for part, row in zip(parts, rows, strict=True)
        ]
    return f"{len(rows)}:{sum(rows) & _WORD:x}"


def _arrays_in(batch: Any) -> list[Any]:
    import tensorflow as tf

    parts = tf.nest.flatten(batch, expand_composites=True)
    return [_as_numpy(part) for part in parts if part is not None]


def _unheard(message: str) -> None:
    """Ignore a notice about the data, because the training reports it."""
    del message
