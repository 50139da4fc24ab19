"""Pytest plugin: Keras's own tests call `sweeper.fit` where they call ``Model.fit``."""

from __future__ import annotations

import inspect
import tempfile
from typing import Any

import keras
import pytest

import sweeper

_OWN = keras.Model.fit
_KEPT = (
    *("batch_size", "shuffle", "validation_batch_size", "validation_freq", "class_weight"),
    *("steps_per_epoch", "validation_steps", "validation_split"),
)
_counts = {"translated": 0, "own": 0}


def _fit(model: keras.Model, *arguments: Any, **named: Any) -> Any:
    given = inspect.signature(_OWN).bind(model, *arguments, **named).arguments
    given.pop("self")
    if given.get("initial_epoch") or given.get("x") is None:
        _counts["own"] += 1
        return _OWN(model, *arguments, **named)
    _counts["translated"] += 1
    x, y, weight = (given.get(name) for name in ("x", "y", "sample_weight"))
    train = x if y is None else (x, y) if weight is None else (x, y, weight)
    options = {name: given[name] for name in _KEPT if given.get(name) is not None}
    validation = given.get("validation_data")
    if inspect.isgenerator(train):
        batches = list(train)
        train = lambda epoch: iter(batches)  # noqa: E731
    callbacks = given.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    with tempfile.TemporaryDirectory() as directory:
        data = sweeper.Data(train=train, validation=validation, **options)
        return sweeper.fit(
            model,
            data,
            epochs=int(given.get("epochs", 1)),
            callbacks=callbacks,
            checkpoints=directory,
            notice=lambda _: None,
        )


def pytest_configure(config: pytest.Config) -> None:
    """Replace ``Model.fit``."""
    del config
    keras.Model.fit = _fit


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many calls were translated."""
    terminalreporter.line(
        f"fit calls: {_counts['translated']} by sweeper, {_counts['own']} by Keras"
    )
