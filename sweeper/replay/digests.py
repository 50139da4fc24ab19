"""Digests of weights and data, to compare two runs of a trial in two processes.

Only the first batches of two epochs and of validation are hashed, or whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from sweeper.checkpoint.tensors import as_array
from sweeper.errors import CheckpointError
from sweeper.replay.reports import Batches, DataDigests, Lengths, Weights
from sweeper.train.data import DataSource, HooksEpochs
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.sources.arrays import ArraySource
from sweeper.train.sources.opening import open_sources

WHOLE_EPOCHS = 3
"""Epochs of a rehearsal, enough for state that changes once in each epoch to be used and lost."""

_MOST_STEPS = 60
"""Steps of an epoch above which a rehearsal shortens it."""

_SHORT_EPOCH = 6
_MOST_VALIDATION = 24
_SHORT_VALIDATION = 4
_BATCHES = 12
"""Batches of each epoch whose data are compared."""

_MOST_BATCHES = 200
"""Batches of a validation above which its samples are not compared, unless they are arrays."""

_WORD = (1 << 64) - 1


def digest_of(value: Any) -> str:
    """Return the XXH3-64 of an array's dtype, shape and bytes; for other values, of their text."""
    array = _as_numpy(value)
    hashed = xxhash.xxh3_64(f"{array.dtype}{array.shape}".encode())
    if array.dtype.hasobject:
        hashed.update(repr(array.tolist()).encode())
    else:
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def _as_numpy(value: Any) -> Any:
    try:
        return np.ascontiguousarray(as_array("", value))
    except CheckpointError:
        return np.asarray(value)


def initial_weights(model: Any) -> Weights:
    """Return each variable's path, its digest, and whether it has more than one value.

    A variable of only zeros or ones was not drawn, so it does not depend on seeds.
    """
    found = []
    for variable in model.variables:
        value = np.asarray(variable)
        varied = value.size > 1 and bool(np.any(value != value.flat[0]))
        found.append((str(variable.path), digest_of(value), varied))
    return tuple(found)


def shortened(
    plan: TrainingPlan, epoch_steps: int | None, validation_steps: int | None
) -> tuple[TrainingPlan, Lengths]:
    """Return the plan with shortened epochs for a rehearsal, and their true lengths.

    Args:
        plan: The trial's plan.
        epoch_steps: The number that an earlier rehearsal chose; None to choose.
        validation_steps: Likewise.
    """
    train, validation = open_sources(plan.data, plan.order_seed, _unheard)
    steps = plan.data.steps_per_epoch or train.steps
    batches = 0
    if validation is not None:
        batches = plan.data.validation_steps or validation.steps or 0
    data = plan.data
    whole = range(min(WHOLE_EPOCHS, plan.epochs))
    if any(map(data.validates_after, range(plan.epochs))) and not any(
        map(data.validates_after, whole)
    ):
        data = replace(data, validation_freq=1)
    if epoch_steps is None and (steps is None or steps > _MOST_STEPS):
        epoch_steps = _SHORT_EPOCH
    if validation is not None and validation_steps is None:
        unknown = plan.data.validation_steps is None and validation.steps is None
        if unknown or batches > _MOST_VALIDATION:
            validation_steps = _SHORT_VALIDATION
    if epoch_steps is not None:
        data = replace(data, steps_per_epoch=epoch_steps)
    if validation_steps is not None:
        data = replace(data, validation_steps=validation_steps)
    return replace(plan, data=data), Lengths(steps, batches, epoch_steps, validation_steps)


def data_digests(plan: TrainingPlan) -> DataDigests:
    """Return digests of the batches of the plan's first two epochs, and of its validation.

    The plan must be new, because a dataset that was already read has another order.
    """
    train, validation = open_sources(plan.data, plan.order_seed, _unheard)
    first = _batches(train, 0)
    second = _batches(train, 1)
    return DataDigests(
        kind=type(train).__name__,
        described=train.describe(),
        shuffle=bool(plan.data.shuffle),
        whole=_whole(train),
        epochs=(first, second),
        validation=() if validation is None else _batches(validation, 0),
        whole_validation=None if validation is None else _whole(validation),
    )


def validation_rows(plan: TrainingPlan) -> str | None:
    """Return a digest of the plan's validation samples, independent of their order.

    None without a validation, or if it is too long.
    """
    _, source = open_sources(plan.data, plan.order_seed, _unheard)
    if source is None:
        return None
    limit = plan.data.validation_steps
    if isinstance(source, ArraySource):
        samples = None if limit is None else limit * source.batch_size
        parts = _arrays_in(source.arrays)
        return _of_rows([[array[:samples] for array in parts]])
    if limit is not None and limit <= _MOST_BATCHES:
        return _of_rows(islice(_each_batch(source), limit))
    batches = list(islice(_each_batch(source), _MOST_BATCHES + 1))
    return None if len(batches) > _MOST_BATCHES else _of_rows(batches)


def _each_batch(source: DataSource) -> Iterator[list[Any]]:
    """Yield the arrays of each batch of one pass."""
    if isinstance(source, HooksEpochs):
        source.begin_epoch()
    for batch in source.open(0, 0):
        yield _arrays_in(batch)


def _arrays_in(batch: Any) -> list[Any]:
    import tensorflow as tf

    parts = tf.nest.flatten(batch, expand_composites=True)
    return [_as_numpy(part) for part in parts if part is not None]


def _of_rows(batches: Iterable[list[Any]]) -> str:
    """Return the sum of the digests of all rows, and their number."""
    total = count = 0
    for batch in batches:
        arrays = batch
        if len({len(array) if array.ndim else 0 for array in batch}) != 1:
            # Ragged or sparse: what belongs to one sample is not known, so the batch is one.
            arrays = [array[np.newaxis] for array in batch]
        rows = [0] * len(arrays[0])
        for array in arrays:
            if array.dtype.hasobject:
                parts = [repr(np.asarray(row, object).tolist()).encode() for row in array]
            else:
                parts = [row.tobytes() for row in array]
            rows = [
                xxhash.xxh3_64_intdigest(part, seed=row)
                for part, row in zip(parts, rows, strict=True)
            ]
        total = (total + sum(rows)) & _WORD
        count += len(rows)
    return f"{count}:{total:x}"


def _batches(source: DataSource, pass_: int) -> Batches:
    import tensorflow as tf

    if isinstance(source, HooksEpochs):
        source.begin_epoch()
    opened = source.open(pass_, 0)
    found = []
    for batch in islice(opened, _BATCHES):
        parts = batch if isinstance(batch, tuple) else (batch,)
        found.append(
            tuple(
                "".join(map(digest_of, tf.nest.flatten(part, expand_composites=True)))
                for part in parts
            )
        )
    close: Callable[[], None] | None = getattr(opened, "close", None)
    if close is not None:
        close()
    if isinstance(source, HooksEpochs):
        source.end_epoch()
    return tuple(found)


def _whole(source: DataSource) -> tuple[str, ...] | None:
    import tensorflow as tf

    if not isinstance(source, ArraySource):
        return None
    return tuple("".join(map(digest_of, tf.nest.flatten(part))) for part in source.arrays)


def _unheard(message: str) -> None:
    """Ignore a notice about the data, because the training reports it."""
    del message
