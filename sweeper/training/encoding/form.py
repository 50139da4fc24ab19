"""What the encoder and the decoder share: the form of what they write, its errors, and digests."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from sweeper.inspection.sorts import class_name

Json = Any
Tensors = dict[str, Any]

TAG = "!"


class NotPlainError(Exception):
    """``path`` leads to ``value``, which has no plain form."""

    def __init__(self, path: str, value: object, reason: str = "") -> None:
        what = reason or f"a {class_name(type(value))}"
        super().__init__(f"{path} is {what}")
        self.path = path
        self.what = what


class UnplaceableError(ValueError):
    """A value was saved that has no place in what is there now."""


def digest_of(array: Any) -> str:
    """XXH3-128 of an array's shape, type and bytes."""
    values = np.ascontiguousarray(array)
    digest = xxhash.xxh3_128(values.reshape(-1).view(np.uint8).data)
    digest.update(f"{values.dtype}{values.shape}".encode())
    return digest.hexdigest()


def hold(variable: Any) -> Any:
    """The variable's value as it is now; it stays that value when the variable is next written.

    The tensor shares the variable's buffer, and TensorFlow copies a shared buffer before writing
    to it, so holding costs no copy of its own.
    """
    inner = getattr(variable, "value", variable)
    if callable(inner):
        inner = variable
    return inner.read_value()
