"""Dask: a cluster at an address, or one of processes made on this machine.

Whoever reaches a scheduler may run code as its user, and on a machine with several users all of them
reach its loopback. So a cluster that is made here lets in only those that hold a key which is made
for it, is in no file, and ends with it; and it leaves no HTTP server open, which asks for none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sweeper.errors import UsageError
from sweeper.support.installation import install_command
from sweeper.support.shown import shown_text, shown_url

_PATIENCE = "15s"
_HTTP_ROUTES = [f"distributed.{part}.http.routes" for part in ("scheduler", "worker", "nanny")]


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
            self._made = _made_here(hosts)
        try:
            self._client = distributed.Client(self._made or address, timeout=_PATIENCE)
            if self._made is not None:
                self._made.scheduler.http_server.stop()
                self._client.run(_close_http_server)
        except (OSError, ValueError) as error:
            msg = (
                f"there is no Dask scheduler at {shown_url(address)} ({shown_text(str(error))}); give the address that "
                "`dask scheduler` prints, such as tcp://10.0.0.1:8786"
            )
            raise UsageError(msg) from error
        if not self.nodes:
            self.close()
            shown = shown_url(address)
            msg = f"the Dask scheduler at {shown} has no workers; start some: dask worker {shown}"
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


def _made_here(hosts: int) -> Any:
    import dask
    import distributed
    from distributed.security import Security

    try:
        security = Security.temporary()
    except ImportError as error:
        msg = (
            "a Dask cluster on this machine needs the package 'cryptography' for the key of its "
            f"connections; {install_command('dask')}, or give a cluster with --engine-address"
        )
        raise UsageError(msg) from error
    # No part can do without its HTTP server, so each serves nothing until it is closed.
    with dask.config.set({name: [] for name in _HTTP_ROUTES}):
        return distributed.LocalCluster(
            n_workers=hosts,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls://",
            security=security,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=0,
        )


def _close_http_server(dask_worker: Any) -> None:
    dask_worker.http_server.stop()
