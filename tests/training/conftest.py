"""Trainings in this process: deterministic kernels, a cleared session for each test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow() -> None:
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_no_garbage() -> Iterator[None]:
    """Clearing a session collects garbage; that it need not search TensorFlow for any saves most."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _fresh_session() -> Iterator[None]:
    import keras

    yield
    keras.backend.clear_session()
