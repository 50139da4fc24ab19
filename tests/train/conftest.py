"""Trainings in this process: deterministic kernels, a cleared session for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow() -> None:
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()


@pytest.fixture(autouse=True)
def _fresh_session() -> Iterator[None]:
    import keras

    yield
    keras.backend.clear_session(free_memory=False)
