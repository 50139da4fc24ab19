"""Objects that only write: progress bars and logs. No result depends on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from sweeper.inspection.sorts import class_name, module_of
from sweeper.train.codec import TAG, Json, NotPlainError, UnplaceableError

_OUTPUT: tuple[type, ...] = (
    keras.utils.Progbar,
    logging.Handler,
    logging.Logger,
    logging.LoggerAdapter,
    tf.summary.SummaryWriter,
)


def is_output(value: object) -> bool:
    """Return whether ``value`` is a progress bar or a log."""
    return isinstance(value, _OUTPUT) or _is_of_tqdm(type(value))


def _is_of_tqdm(cls: type) -> bool:
    return module_of(cls).partition(".")[0] == "tqdm" and hasattr(cls, "set_postfix")


def put_output(value: Any, where: str, class_of: Callable[[type], Json]) -> Json:
    """Encode a progress bar or a logger made during training: its settings, not its output.

    Raises:
        NotPlainError: Its target is unknown.
    """
    cls = type(value)
    if cls is logging.Logger and logging.getLogger(value.name) is value:
        return {TAG: "logger", "v": value.name}
    if cls is keras.utils.Progbar:
        shown = {"target": value.target, "unit_name": value.unit_name, "verbose": value.verbose}
        shown["stateful_metrics"] = sorted(value.stateful_metrics)
    elif _is_of_tqdm(cls) and value.iterable is None:
        names = ("total", "unit", "leave", "disable")
        shown = {name: getattr(value, name, None) for name in names}
        shown["initial"] = getattr(value, "n", 0)
        shown["desc"] = (getattr(value, "desc", None) or "").removesuffix(": ") or None
    else:
        what = f"a {class_name(cls)} made during training; make it in the factory"
        raise NotPlainError(where, value, what)
    return {TAG: "bar", "class": class_of(cls), "v": shown}


def take_bar(node: Mapping[str, Any], class_of: Callable[[Json], Any]) -> Any:
    """Return a progress bar with the settings that `put_output` encoded."""
    cls = class_of(node)
    if cls is not keras.utils.Progbar and not _is_of_tqdm(cls):
        msg = f"it contains a progress bar, and {cls.__name__} is not one now"
        raise UnplaceableError(msg)
    return cls(**node["v"])
