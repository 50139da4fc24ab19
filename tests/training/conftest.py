"""Trainings in this process: deterministic kernels, one thread, a cleared session for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _tensorflow() -> None:
    from sweeper.execution.devices import configure_tensorflow

    configure_tensorflow(threads=1, deterministic=True)


@pytest.fixture(autouse=True)
def _fresh_session() -> Iterator[None]:
    import keras

    yield
    keras.backend.clear_session()
