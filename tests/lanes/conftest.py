"""Trainings in this process, with deterministic kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow() -> None:
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
