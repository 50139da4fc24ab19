"""Choice of the data source for the user's data, and fingerprints of data.

The fingerprint of arrays has their contents. That of data in batches has only their form, because
reading a batch can change the following ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from sweeper.errors import DataError
from sweeper.inspection.sorts import class_name
from sweeper.train.data import Data, DataSource, PartName, SourceOptions, shown_option
from sweeper.train.sources.arrays import (
    ArraySource,
    is_arrays,
    is_ragged,
    is_texts,
    split_arrays,
)
from sweeper.train.sources.epochs import EpochFunctionSource, GrainSource, is_grain
from sweeper.train.sources.pydataset import PyDatasetSource
from sweeper.train.sources.tfdata import (
    TfDataSource,
    fills_cache_in_any_order,
    remember_generators,
    set_generators,
)


def open_sources(
    data: Data, seed: np.random.SeedSequence, notify: Callable[[str], None]
) -> tuple[DataSource, DataSource | None]:
    """Return the sources of the training data, in an order from ``seed``, and of the validation data, if any."""
    train = data.train
    validation = data.validation
    if train is None:
        name = PartName.of(data, "train")
        raise DataError(f"{name} is not given, the training data: {name.kinds}")
    if data.validation_split:
        if not is_arrays(train):
            raise DataError(
                f"{shown_option(data, 'validation_split', data.validation_split)} needs arrays, and "
                f"{PartName.of(data, 'train')} is a {kind_of(train)}; give "
                f"{PartName.of(data, 'validation')} instead"
            )
        train, validation = split_arrays(data)
    order = seed if data.shuffle else None
    options = SourceOptions(PartName.of(data, "train"), notify, order, data.class_weight)
    source = _open(train, options, batch_size=data.batch_size)
    if source.endless and data.steps_per_epoch is None:
        raise DataError(f"{source.name} never ends; give {shown_option(data, 'steps_per_epoch')}")
    if validation is None:
        return source, None
    test = _open_to_measure(data, "validation", validation, data.validation_steps, notify)
    _check_shared(source, test, data, notify)
    return source, test


def kind_of(data: Any) -> str:
    """Return the kind of ``data`` for errors, by its public name."""
    if isinstance(data, tf.data.Dataset):
        return "tf.data.Dataset"
    return class_name(type(data)).removeprefix("builtins.")


def passes_end_within(data: Data, source: DataSource, epochs: int) -> str | None:
    """Return a notice if one of ``epochs`` epochs continues with another pass over the training data, or None."""
    limit = data.steps_per_epoch
    steps = source.steps
    if source.by_epoch or not limit or not steps or steps % limit == 0 or epochs * limit <= steps:
        return None
    return (
        f"{shown_option(data, 'steps_per_epoch', limit)}: a pass over the training data has {steps:,} "
        "batches, so a pass ends inside an epoch, and the epoch continues with the next pass; "
        "model.fit would end the epoch there. For one pass per epoch, leave steps_per_epoch out"
    )


def validation_data(data: Data) -> Any:
    """Return the validation data: those that the user gave, or a part of the training data; None without any."""
    if data.validation_split:
        return split_arrays(data)[1]
    return data.validation


def set_data_generators(data: Data, seed: int) -> None:
    """Set the generators of the datasets of ``data`` that were drawn from, as where a script looks at a batch."""
    for part in _datasets(data):
        set_generators(part, seed)


def remember_data_generators(data: Data) -> None:
    """Remember the generators of the datasets of ``data`` at the end of a training."""
    for part in _datasets(data):
        remember_generators(part)


def _datasets(data: Data) -> Iterator[Any]:
    for part in (data.train, data.validation):
        if isinstance(part, tf.data.Dataset):
            yield part


def caches_filled_without_determinism(data: Data) -> Iterator[str]:
    """Yield a notice for each dataset of ``data`` whose cache may have been filled while kernels were not deterministic."""
    for name, part in (("train", data.train), ("validation", data.validation)):
        if isinstance(part, tf.data.Dataset) and fills_cache_in_any_order(part):
            yield (
                f"{PartName.of(data, name)}: a function before a cache() is called in parallel and is random, or has "
                "deterministic=False, and this process made kernels deterministic only in fit. If the dataset was iterated "
                "before, its cache has other elements in each process, and a resumed training differs; call "
                "tf.config.experimental.enable_op_determinism() at the top of the script"
            )


@dataclass(frozen=True)
class HeldOut:
    """Data on which checkpoints are evaluated: of ``Data(name=…)``, at most ``limit`` batches."""

    name: str
    given: Any
    source: DataSource
    limit: int | None


def open_held_out(data: Data, notify: Callable[[str], None]) -> HeldOut | None:
    """Return the held-out data: the test data, otherwise the validation data, or None."""
    name = "test"
    held_out = data.test
    limit = None
    if held_out is None:
        name = "validation"
        held_out = validation_data(data)
        limit = data.validation_steps
    if held_out is None:
        return None
    source = _open_to_measure(data, name, held_out, limit, notify)
    if source.reshuffling:
        raise DataError(
            f"{source.name} is reshuffled at each iteration, so every checkpoint would "
            "be measured on another order; leave the shuffle out, or give it "
            "reshuffle_each_iteration=False"
        )
    return HeldOut(name, held_out, source, limit)


def _open_to_measure(
    data: Data, name: str, held_out: Any, limit: int | None, notify: Callable[[str], None]
) -> DataSource:
    """Return the source of validation or test data."""
    size = data.validation_batch_size or data.batch_size
    source = _open(
        held_out, SourceOptions(PartName.of(data, name), notify), batch_size=size, limit=limit
    )
    if source.endless and limit is None:
        cure = f"give {shown_option(data, 'validation_steps')}"
        if name == "test":
            cure = "make it finite, for example with take(…)"
        raise DataError(f"{source.name} never ends; {cure}")
    return source


def _open(
    data: Any, options: SourceOptions, *, batch_size: int, limit: int | None = None
) -> DataSource:
    if isinstance(data, keras.utils.PyDataset):
        return PyDatasetSource(data, options)
    if isinstance(data, tf.data.Dataset):
        return TfDataSource(data, options, limit=limit)
    if is_grain(data):
        return GrainSource(data, options)
    if hasattr(data, "__next__"):
        raise DataError(
            f"{options.name} is a {kind_of(data)}, whose position cannot be saved and which is "
            f"exhausted after one epoch; pass the function that makes it, {options.name.shown('lambda epoch: …')}"
        )
    if is_arrays(data):
        return ArraySource(data, options, batch_size=batch_size)
    if callable(data):
        return EpochFunctionSource(data, options)
    raise DataError(f"{options.name} is a {kind_of(data)}; expected {options.name.kinds}")


def _check_shared(
    train: DataSource, test: DataSource, data: Data, notify: Callable[[str], None]
) -> None:
    """Tell of parts of one dataset that is reshuffled every epoch; refuse them if a pass is not read to its end."""
    if not isinstance(train, TfDataSource) or not isinstance(test, TfDataSource):
        return
    shared = [node for key, node in train.reshuffling.items() if key in test.reshuffling]
    if not shared:
        return
    problem = (
        f"{train.name} and {test.name} are parts of one dataset that is reshuffled in "
        "every epoch, so samples move from one part to the other"
    )
    advice = "split it before every shuffle, or give each reshuffle_each_iteration=False"
    if data.steps_per_epoch is not None or data.validation_steps is not None:
        raise DataError(
            f"{problem}, and a resumed training could not split them as before; {advice}"
        )
    notify(f"{problem}, and the validation measures samples that were trained on; {advice}")


_BLOCK = 1 << 22
"""Bytes that are hashed at a time."""

_SETTINGS = (
    "batch_size",
    "shuffle",
    "validation_batch_size",
    "class_weight",
    "steps_per_epoch",
    "validation_steps",
    "validation_split",
)


def data_fingerprint(data: Data) -> str:
    """Return the XXH3-128 (hex) of the training and validation data."""
    digest = xxhash.xxh3_128()
    for use, part in (("train", data.train), ("validation", data.validation)):
        digest.update(f"{use}:".encode())
        _update(digest, part)
    return digest.hexdigest()


def held_out_fingerprint(held_out: HeldOut, batch_size: int) -> str:
    """Return the XXH3-128 (hex) of held-out data, of ``batch_size`` and of the limit."""
    digest = xxhash.xxh3_128(f"{batch_size}:{held_out.limit}:".encode())
    _update(digest, held_out.given)
    return digest.hexdigest()


def data_settings(data: Data) -> dict[str, Any]:
    """Return the settings of ``data`` that affect steps, as plain values by name."""
    plain = (type(None), bool, int, float, str)
    settings = {name: getattr(data, name) for name in _SETTINGS}
    return {name: v if type(v) in plain else repr(v) for name, v in settings.items()}


def _update(digest: xxhash.xxh3_128, data: Any) -> None:
    if data is None or not is_arrays(data):
        digest.update(_form(data).encode())
    elif isinstance(data, Mapping):
        for key, part in data.items():
            digest.update(f"{{{key!r}:".encode())
            _update(digest, part)
    elif is_ragged(data):
        _update(digest, (*data.nested_row_splits, data.flat_values))
    elif is_texts(data):
        digest.update(repr(data).encode())
    elif isinstance(data, tuple | list):
        digest.update(f"({len(data)}:".encode())
        for part in data:
            _update(digest, part)
    else:
        _update_array(digest, data)


def _update_array(digest: xxhash.xxh3_128, data: Any) -> None:
    array = np.asarray(data)
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    if array.dtype.kind in "OT" or array.ndim == 0:  # Python's objects and NumPy's StringDType
        digest.update(repr(array.tolist()).encode())
        return
    rows = max(1, _BLOCK * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), rows):
        block = np.ascontiguousarray(array[start : start + rows])
        digest.update(block.reshape(-1).view(np.uint8).data)


def _form(data: Any) -> str:
    """Return the form of data in batches, as far as it is known without reading."""
    kind = type(data)
    name = f"{kind.__module__}.{getattr(data, '__qualname__', kind.__qualname__)}"
    form = [getattr(data, attribute, None) for attribute in ("element_spec", "num_batches")]
    return f"{name} {form!r}"
