"""Digests of weights and of data, to compare two runs of one trial that were in two processes.

What is hashed is bounded: the first batches of two epochs and of validation, and all of the arrays
where the data are arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from sweeper.checkpoints.tensors import as_array
from sweeper.errors import CheckpointError
from sweeper.independence.reports import Batches, DataDigests, Lengths
from sweeper.training.data import DataSource, HooksEpochs
from sweeper.training.loop.plan import TrainingPlan
from sweeper.training.sources.arrays import ArraySource
from sweeper.training.sources.opening import open_sources

WHOLE_EPOCHS = 3
"""Epochs that a rehearsal trains: what acts once an epoch must have acted, and been lost, by then."""

_MOST_STEPS = 60
"""Steps of an epoch above which a rehearsal has shorter ones."""

_SHORT_EPOCH = 6
_MOST_VALIDATION = 24
_SHORT_VALIDATION = 4
_BATCHES = 12
"""Batches of each epoch whose data are compared."""


def digest_of(value: Any) -> str:
    """XXH3-64 of an array's dtype, shape and bytes; of what has no such form, of its text."""
    try:
        array = np.ascontiguousarray(as_array("", value))
    except CheckpointError:
        array = np.asarray(value)
    hashed = xxhash.xxh3_64(f"{array.dtype}{array.shape}".encode())
    if array.dtype.hasobject:
        hashed.update(repr(array.tolist()).encode())
    else:
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def initial_weights(model: Any) -> tuple[tuple[str, str, bool], ...]:
    """Of each variable of the model: its path, a digest, and whether it has more than one value.

    One that is all zeros or ones was not drawn, and says nothing about seeds.
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
    """The plan with epochs short enough to rehearse several of them, and how long they really are.

    Args:
        plan: The trial's own.
        epoch_steps: What an earlier rehearsal decided; None to decide.
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
    """The batches of the plan's first two epochs, and of its validation, as digests.

    The plan must be fresh: a dataset that was read before gives another order.
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


def _batches(source: DataSource, pass_: int) -> Batches:
    import tensorflow as tf

    if isinstance(source, HooksEpochs):
        source.begin_epoch()
    opened = source.open(pass_, 0)
    found = []
    for batch in islice(opened, _BATCHES):
        parts = batch if isinstance(batch, tuple) else (batch,)
        found.append(tuple("".join(map(digest_of, tf.nest.flatten(part))) for part in parts))
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
    """What is said about the data is said once, by the training itself."""
    del message
