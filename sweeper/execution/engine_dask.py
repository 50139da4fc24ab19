"""Dask: a cluster at an address, or one of processes made on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sweeper.errors import UsageError

__all__ = ["DaskCluster"]

_PATIENCE = "15s"


class DaskCluster:
    """A client of a Dask scheduler.

    Args:
        address: The scheduler's, such as ``tcp://10.0.0.1:8786``; None for a cluster of this
            machine's own.
        hosts: Processes of a cluster that is made here; each will run one worker host.

    Raises:
        UsageError: There is no scheduler at the address, or it has no workers.
    """

    def __init__(self, address: str | None, hosts: int) -> None:
        import distributed

        self._made: Any = None
        if address is None:
            self._made = distributed.LocalCluster(
                n_workers=hosts,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                memory_limit=0,
            )
        try:
            self._client = distributed.Client(self._made or address, timeout=_PATIENCE)
        except (OSError, ValueError) as error:
            msg = (
                f"there is no Dask scheduler at {address} ({error}); give the address that "
                "`dask scheduler` prints, such as tcp://10.0.0.1:8786"
            )
            raise UsageError(msg) from error
        if not self.nodes:
            self.close()
            msg = (
                f"the Dask scheduler at {address} has no workers; start some: dask worker {address}"
            )
            raise UsageError(msg)

    @property
    def nodes(self) -> int:
        return len(self._client.nthreads())

    def backend(self, tasks: int, slots: int) -> AbstractContextManager[object]:
        del tasks, slots
        return self._backend()

    @contextmanager
    def _backend(self) -> Iterator[None]:
        import joblib

        with joblib.parallel_config(backend="dask", client=self._client):
            yield

    def close(self) -> None:
        for held in (self._client, self._made):
            if held is not None:
                with contextlib.suppress(OSError, TimeoutError):
                    held.close()
