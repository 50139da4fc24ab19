"""What the encoder and the decoder share: tags, names, and where objects stood at the beginning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from sweeper.training.encoding.kinds import class_name

__all__ = [
    "TAG",
    "Json",
    "NotPlainError",
    "Origins",
    "Tensors",
    "UnplaceableError",
    "digest_of",
    "hold",
]

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


@dataclass
class Origins:
    """What stood where when training began, or when it went on from a checkpoint.

    Attributes:
        objects: By path.
        digests: Of large arrays, by path.
        known: Whether everything has been seen once; from then on nothing new is an origin.
    """

    objects: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    known: bool = False

    def kept(self, path: str, value: object) -> bool:
        """Whether ``value`` stands at ``path`` since the beginning."""
        if not self.known:
            self.objects.setdefault(path, value)
        return self.objects.get(path) is value


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
