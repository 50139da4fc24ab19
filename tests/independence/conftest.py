"""Models in this process: deterministic kernels, names that begin anew for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_names() -> Iterator[None]:
    import keras

    keras.backend.clear_session(free_memory=False)
    yield
    keras.backend.clear_session(free_memory=False)
