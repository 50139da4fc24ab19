"""Models in this process: deterministic kernels, names that begin anew for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from sweeper.guard import owned


@pytest.fixture(autouse=True)
def _fresh_names() -> Iterator[None]:
    import keras

    keras.backend.clear_session(free_memory=False)
    yield
    keras.backend.clear_session(free_memory=False)


@pytest.fixture(autouse=True)
def _no_modules_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's own studies are all of the user's: whatever pytest has imported would be searched too."""
    before = set(sys.modules)
    real = owned.is_users_module
    monkeypatch.setattr(owned, "is_users_module", lambda n: n not in before and real(n))
