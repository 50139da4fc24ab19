"""Short form of a trial for `sweeper check`, and a digest of its validation samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xxhash

from sweeper.replay.reports import Lengths
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.sources.arrays import ArraySource, is_ragged
from sweeper.train.sources.opening import open_sources

_MOST_STEPS = 60
"""Steps of an epoch above which it is shortened."""

_SHORT_EPOCH = 6
_MOST_VALIDATION = 24
_SHORT_VALIDATION = 4
_WORD = (1 << 64) - 1


def shortened(plan: TrainingPlan) -> tuple[TrainingPlan, Lengths]:
    """Return the plan with shortened epochs, and how much longer the study's are.

    Some validation follows one of its epochs if one follows an epoch of the study.
    """
    # The training itself reports notices about the data.
    train, validation = open_sources(plan.data, plan.order_seed, lambda _: None)
    data, times = plan.data, 1.0
    steps = data.steps_per_epoch or train.steps
    if steps is None or steps > _MOST_STEPS:
        data = replace(data, steps_per_epoch=_SHORT_EPOCH)
        times = (steps or 0) / _SHORT_EPOCH
    if validation is not None:
        if not any(map(data.validates_after, range(plan.epochs))):
            data = replace(data, validation_freq=1)
        batches = data.validation_steps or validation.steps
        if batches is None or batches > _MOST_VALIDATION:
            data = replace(data, validation_steps=_SHORT_VALIDATION)
            times = max(times, (batches or 0) / _SHORT_VALIDATION)
    return replace(plan, data=data), Lengths(steps, times)


def validation_rows(plan: TrainingPlan) -> str | None:
    """Return a digest of a plan's validation samples, which are arrays, independent of their order.

    None without a validation, or if the data are no arrays, or ragged.
    """
    _, source = open_sources(plan.data, plan.order_seed, lambda _: None)
    if not isinstance(source, ArraySource):
        return None
    import tensorflow as tf

    arrays = [array for array in tf.nest.flatten(source.arrays) if array is not None]
    if any(map(is_ragged, arrays)):
        return None
    limit = plan.data.validation_steps
    samples = source.samples if limit is None else min(source.samples, limit * source.batch_size)
    digests = (
        xxhash.xxh3_64_intdigest(b"".join(map(_content, sample)))
        for sample in zip(*(array[:samples] for array in arrays), strict=True)
    )
    return f"{samples}:{sum(digests) & _WORD:x}"


def _content(part: Any) -> bytes:
    """Return the bytes of one sample of an array."""
    array = np.asarray(part)
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
