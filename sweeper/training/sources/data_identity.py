"""Which data a training without a study is of, so that it does not go on with others.

Arrays are distinguished by what is in them. Of data that come in batches only the form is looked at:
to read one batch of them can change what the next ones are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from sweeper.training.data import Data
from sweeper.training.sources.arrays import is_arrays, is_ragged
from sweeper.training.sources.opening import HeldOut

_MOST = 1 << 30
"""Bytes of one array that are looked at; of a larger one, whole samples in equal distances."""

_BLOCK = 1 << 22

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
    """XXH3-128 (hex) of what ``data`` trains and validates on."""
    digest = xxhash.xxh3_128()
    for use, given in (("train", data.train), ("validation", data.validation)):
        digest.update(f"{use}:".encode())
        _update(digest, given)
    return digest.hexdigest()


def held_out_fingerprint(held_out: HeldOut, batch_size: int) -> str:
    """XXH3-128 (hex) of data that checkpoints are measured on: what is read of them, in which batches."""
    digest = xxhash.xxh3_128(f"{batch_size}:{held_out.limit}:".encode())
    _update(digest, held_out.given)
    return digest.hexdigest()


def data_settings(data: Data) -> dict[str, Any]:
    """The numbers of ``data`` that decide what a step is, as plain values by name."""
    settings = {name: getattr(data, name) for name in _SETTINGS}
    return {name: value if _is_plain(value) else repr(value) for name, value in settings.items()}


def _update(digest: xxhash.xxh3_128, given: Any) -> None:
    if given is None or not is_arrays(given):
        digest.update(_form(given).encode())
    elif isinstance(given, Mapping):
        for key, part in given.items():
            digest.update(f"{{{key!r}:".encode())
            _update(digest, part)
    elif is_ragged(given):
        _update(digest, (*given.nested_row_splits, given.flat_values))
    elif isinstance(given, tuple | list):
        digest.update(f"({len(given)}:".encode())
        for part in given:
            _update(digest, part)
    else:
        _update_array(digest, given)


def _update_array(digest: xxhash.xxh3_128, given: Any) -> None:
    array = np.asarray(given)
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    if array.dtype == object or array.ndim == 0:
        digest.update(repr(array.tolist() if array.ndim == 0 else array.shape).encode())
        return
    samples = len(array)
    chosen = np.arange(samples)
    if array.nbytes > _MOST:
        chosen = np.linspace(0, samples - 1, max(1, samples * _MOST // array.nbytes)).astype(int)
    rows = max(1, _BLOCK * samples // max(1, array.nbytes))
    for start in range(0, len(chosen), rows):
        block = chosen[start : start + rows]
        part = array[block] if len(chosen) < samples else array[block[0] : block[-1] + 1]
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)


def _form(given: Any) -> str:
    """What is known of data that come in batches, without reading one."""
    kind = type(given)
    name = f"{kind.__module__}.{getattr(given, '__qualname__', kind.__qualname__)}"
    form = [getattr(given, what, None) for what in ("element_spec", "num_batches")]
    return f"{name} {form!r}"


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, float, str)
