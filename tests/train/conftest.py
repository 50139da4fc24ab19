"""Trainings in this process: deterministic kernels, a cleared session for each test."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow():
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()


@pytest.fixture(autouse=True)
def _fresh_session():
    import keras

    yield
    keras.backend.clear_session(free_memory=False)
