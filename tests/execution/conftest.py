"""What this directory's tests share: fixtures of a file run sweeps on the servers that its tests have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def servers_of_fixtures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Warm servers of module-scoped fixtures, too, are forked, except by ``REAL_SERVERS``."""
    if getattr(request.module, "REAL_SERVERS", False):
        yield
        return
    from sweeper.execution.launch import server_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "_SERVER", request.getfixturevalue("forked_servers"))
        yield
