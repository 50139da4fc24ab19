"""Objects of libraries whose state is not in attributes: buffers, progress bars, logs and others written in C.

A change of a buffer, or of another object written in C, is refused by name. Progress bars and logs only write,
and no result depends on them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from sweeper.inspection.sorts import HEAP, class_name, module_of
from sweeper.train.codec import (
    TAG,
    Json,
    NotPlainError,
    UnplaceableError,
)

_IMMUTABLE = 1 << 8
_HARMLESS: tuple[type, ...] = (object, threading.local)
"""Classes written in C whose objects have no other state than attributes."""


def hides_state(cls: type) -> bool:
    """Return whether objects of ``cls`` may have state besides attributes, because a base is written in C."""
    return any(
        not base.__flags__ & HEAP
        or base.__flags__ & _IMMUTABLE
        or "__reduce_cython__" in vars(base)
        for base in cls.__mro__
        if not issubclass(base, BaseException) and base not in _HARMLESS
    )


def is_buffer(obj: object) -> bool:
    """Return whether ``obj`` is writable memory, such as a `bytearray` or `array.array`."""
    try:
        with memoryview(obj) as view:  # type: ignore[arg-type]
            return not view.readonly and view.c_contiguous
    except TypeError:
        return False


_OUTPUT: tuple[type, ...] = (
    keras.utils.Progbar,
    logging.Handler,
    logging.Logger,
    logging.LoggerAdapter,
    tf.summary.SummaryWriter,
)

_OF_BAR = ("total", "n", "desc", "unit", "leave", "disable")


def is_output(value: object) -> bool:
    """Return whether ``value`` is a progress bar or a log."""
    return isinstance(value, _OUTPUT) or _is_bar(value)


def _is_bar(value: object) -> bool:
    cls = type(value)
    return module_of(cls).partition(".")[0] == "tqdm" and hasattr(cls, "set_postfix")


def put_output(value: Any, where: str, class_of: Callable[[type], Json]) -> Json:
    """Encode a progress bar or a logger made during training: its settings, not its output.

    Raises:
        NotPlainError: Its target is unknown.
    """
    if type(value) is logging.Logger and logging.getLogger(value.name) is value:
        return {TAG: "logger", "v": value.name}
    if type(value) is keras.utils.Progbar:
        shown = {"target": value.target, "unit_name": value.unit_name, "verbose": value.verbose}
        return {
            TAG: "progress",
            "v": {**shown, "stateful_metrics": sorted(value.stateful_metrics)},
        }
    if _is_bar(value) and value.iterable is None:
        shown = {name: getattr(value, name, None) for name in _OF_BAR}
        return {TAG: "bar", "class": class_of(type(value)), "v": shown}
    what = f"a {class_name(type(value))} made during training; make it in the factory"
    raise NotPlainError(where, value, what)


def take_output(body: Mapping[str, Any], class_of: Callable[[Json], Any]) -> Any:
    """Return the inverse of `put_output`."""
    shown = body["v"]
    if body[TAG] == "logger":
        return logging.getLogger(shown)
    if body[TAG] == "progress":
        return keras.utils.Progbar(**shown)
    cls = class_of(body["class"])
    if not module_of(cls).startswith("tqdm"):
        msg = f"it contains a progress bar, and {cls.__name__} is not one now"
        raise UnplaceableError(msg)
    return cls(
        total=shown["total"],
        initial=shown["n"],
        desc=(shown["desc"] or "").removesuffix(": ") or None,
        unit=shown["unit"],
        leave=shown["leave"],
        disable=shown["disable"],
    )
