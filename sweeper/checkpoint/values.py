"""Plain values as JSON text and back, exactly.

JSON alone changes values: it has no NaN or infinity, other readers round integers beyond 2**53,
and Python refuses decimal integers of more than 4300 digits. Resumed training must see the very
values it had, so those are written under a tag: ``{"$float": "7ff8000000000000"}`` (the eight
bytes of the IEEE double) and ``{"$int": "0x1f…"}``. A dict's own key that starts with ``$`` gets
another ``$``, so a tag is never mistaken for data.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.errors import CheckpointError

JSON = None | bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"]
"""Values that a checkpoint's state may hold: these, lists of these, and dicts with string keys."""

_FLOAT = "$float"
_INT = "$int"
_EXACT_EVERYWHERE = 2**53


def encode_values(value: object, where: str = "state") -> bytes:
    """Return ``value`` as ASCII JSON text that `decode_values` turns into an equal value.

    Only the exact types come back as they were, so only those are accepted: a tuple would come
    back as a list and a NumPy float as a Python one.

    Args:
        value: None, a bool, int, float or str, a list of these, or a dict with string keys.
        where: What the value is called in errors.

    Raises:
        CheckpointError: Something in it is of another type; its path is named.
    """
    try:
        return json.dumps(_tag(value, where), separators=(",", ":"), allow_nan=False).encode()
    except RecursionError as error:
        msg = f"{where} contains itself or is nested too deeply for JSON; flatten it"
        raise CheckpointError(msg) from error


def decode_values(text: bytes) -> Any:
    """Return the value that `encode_values` wrote.

    Raises:
        ValueError: It is not such a text.
    """
    try:
        return _untag(json.loads(text))
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error
    except struct.error as error:
        raise ValueError(str(error)) from error


def relocated(value: Any, was: str, now: str) -> Any:
    """``value`` with every path in it that lies in the directory ``was`` brought to ``now``."""
    if not was:
        return value
    if isinstance(value, str):
        return now + value[len(was) :] if value == was or value.startswith(f"{was}/") else value
    if isinstance(value, list):
        return [relocated(item, was, now) for item in value]
    if isinstance(value, Mapping):
        return {key: relocated(item, was, now) for key, item in value.items()}
    return value


def _tag(value: object, where: str) -> object:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if isinstance(value, int) and kind is int:
        return value if abs(value) <= _EXACT_EVERYWHERE else {_INT: hex(value)}
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {_FLOAT: struct.pack(">d", value).hex()}
    if isinstance(value, list) and kind is list:
        return [_tag(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): _tag(item, f"{where}[{key!r}]") for key, item in value.items()}
    msg = (
        f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint's state holds None, "
        "bool, int, float, str, lists and dicts with string keys, of exactly these types: "
        "convert it (put an array into the tensors, and bytes into a hex string)"
    )
    raise CheckpointError(msg)


def _key(key: object, where: str) -> str:
    if isinstance(key, str) and type(key) is str:
        return f"${key}" if key.startswith("$") else key
    msg = f"{where} has the key {key!r}, a {type(key).__name__}; use string keys"
    raise CheckpointError(msg)


def _untag(value: object) -> object:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        if isinstance(text := value.get(_FLOAT), str):
            number: float = struct.unpack(">d", bytes.fromhex(text))[0]
            return number
        if isinstance(text := value.get(_INT), str):
            return int(text, 16)
    return {key.removeprefix("$"): _untag(item) for key, item in value.items()}
