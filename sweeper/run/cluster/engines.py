"""Clusters on which joblib starts worker hosts: Dask and Ray.

A task only starts a worker host on its node and waits for it (`sweeper.run.cluster.host`). So a
cluster's restrictions on tasks, and its way of starting Python, do not reach trials.

Anyone who can connect to a Dask scheduler or to Ray's servers can run code as the user who started
them, and all users of a machine can connect to its loopback interface. So a Dask cluster that is
started here requires TLS with a key that is in no file and ends with the cluster, and its HTTP
servers, which require no key, are closed. A Ray cluster that is started here requires a token that only
the processes of this run have, and listens on the loopback interface alone.
"""

import contextlib
import importlib.util
import ipaddress
import logging
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sweeper.errors import ExecutionError, UsageError
from sweeper.support.installation import install_command
from sweeper.support.shown import shown_text, shown_url

T = TypeVar("T")

_PATIENCE = "15s"
"""Time in which a Dask scheduler has to answer."""

_HTTP_ROUTES = [f"distributed.{part}.http.routes" for part in ("scheduler", "worker", "nanny")]


class DaskCluster:
    """Connection to a Dask scheduler; without an address, to one that is started here with ``hosts`` processes."""

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
            raise UsageError(
                f"there is no Dask scheduler at {shown_url(address)} ({shown_text(str(error))}); give the address that "
                "`dask scheduler` prints, such as tcp://10.0.0.1:8786"
            ) from error
        if not self.nodes:
            self.close()
            location = shown_url(address)
            raise UsageError(
                f"the Dask scheduler at {location} has no workers; start some: dask worker {location}"
            )

    @property
    def nodes(self) -> int:
        return len(self._client.nthreads())

    def backend(self, tasks: int, slots: int) -> Any:
        import joblib

        del tasks, slots
        return joblib.parallel_config(backend="dask", client=self._client)

    def close(self) -> None:
        for connection in (self._client, self._made):
            if connection is not None:
                # The scheduler may be gone; the trials' results are in the database.
                with contextlib.suppress(OSError, TimeoutError):
                    connection.close()


def _made_here(hosts: int) -> Any:
    import dask
    import distributed
    from distributed.security import Security

    try:
        security = Security.temporary()
    except ImportError as error:
        raise UsageError(
            "a Dask cluster on this machine needs the package 'cryptography' for the key of its "
            f"connections; {install_command('dask')}, or give a cluster with --engine-address"
        ) from error
    # Dask starts an HTTP server in each process; until it is closed, it serves no routes.
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


_FEWEST = 2
"""Minimum number of processors, because joblib runs a single job in the calling process."""

_CLOSED = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: the loopback, and no cluster
}


class RayCluster:
    """Connection to a Ray cluster; without an address, to one that is started here and runs ``hosts`` hosts."""

    def __init__(self, address: str | None, hosts: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        imported = sys.modules.get("ray")
        self._ours = imported is None or not imported.is_initialized()
        self._made_for = hosts if self._ours and address is None else None
        if self._ours:
            if address is None:
                _let_nobody_else_in(imported=imported is not None)
            _join(address, hosts)
        processors = self._processors()
        if processors < _FEWEST:
            self.close()
            raise UsageError(
                f"the Ray cluster at {shown_url(address)} has {processors} "
                f"processor{'' if processors == 1 else 's'}, and joblib needs {_FEWEST} or more; "
                "the number need not be real, so start it with: ray start --head "
                f"--num-cpus={_FEWEST}"
            )

    @property
    def nodes(self) -> int:
        return self._processors() if self._made_for is None else self._made_for

    def _processors(self) -> int:
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    def backend(self, tasks: int, slots: int) -> Any:
        import joblib
        from ray.util.joblib import register_ray

        register_ray()
        # Without room for every actor, joblib would wait forever for the ones that do not fit.
        room = tasks > 1 and tasks * slots <= self.nodes
        arguments = {"num_cpus": slots if room else 0, "scheduling_strategy": "SPREAD"}
        return joblib.parallel_config(backend="ray", ray_remote_args=arguments)

    def close(self) -> None:
        import ray

        if self._ours:
            ray.shutdown()


def _join(address: str | None, hosts: int) -> None:
    import ray

    # Without "local", Ray would join a cluster that it finds on this machine or in RAY_ADDRESS.
    local: dict[str, Any] = {
        "address": "local",
        "num_cpus": max(_FEWEST, hosts),
        "include_dashboard": False,
    }
    where = local if address is None else {"address": address}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        if address is None:
            _check_on_loopback()
    except (ConnectionError, OSError, ValueError) as error:
        reason = shown_text(str(error))
        if address is None:
            raise ExecutionError(
                f"no Ray cluster can be started on this machine: {reason}"
            ) from error
        raise UsageError(
            f"there is no Ray cluster at {shown_url(address)} ({reason}); give the "
            "address that `ray start --head` prints, or leave --engine-address out"
        ) from error


def _let_nobody_else_in(*, imported: bool) -> None:
    """Require a token of all clients, by environment variables that Ray reads when it is imported."""
    if imported:
        if all(os.environ.get(name) == value for name, value in _CLOSED.items()):
            return
        raise UsageError(
            "ray was already imported in this process, so a new cluster would be open to others; "
            f"set {' '.join(f'{name}={value}' for name, value in _CLOSED.items())} and "
            "RAY_AUTH_TOKEN before the import, or call ray.init() yourself and sweeper uses that "
            "cluster"
        )
    if os.environ.get("RAY_AUTH_MODE") != "token":
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.update(_CLOSED)


def _check_on_loopback() -> None:
    """Shut down a cluster of this process that listens elsewhere, as another version of Ray may."""
    import ray

    addresses = [str(node["NodeManagerAddress"]) for node in ray.nodes()]
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        return
    ray.shutdown()
    raise UsageError(
        f"the Ray cluster made here listens on {', '.join(addresses)}; expected only the loopback "
        "interface. Make one with `ray start --head` and give its address with --engine-address, "
        "or use --engine dask"
    )


CLUSTERS = {"dask": "distributed", "ray": "ray"}
"""Modules that the cluster engines need, by engine."""


Cluster = DaskCluster | RayCluster
"""Connection to a cluster; ``nodes`` is the known maximum number of parallel tasks, and in ``backend`` joblib
runs them there, each with ``slots`` processors."""


def check_engine(name: str, *, isolation: str = "auto", address: str | None = None) -> None:
    """Check that an engine exists, is installed, and can be used with the other options."""
    if name not in ("local", *CLUSTERS):
        raise UsageError(f"there is no engine {name!r}; use 'local', 'dask' or 'ray'")
    if name == "local":
        if address is not None:
            raise UsageError(
                f"--engine-address {address} is for a cluster; add --engine dask or --engine ray, "
                "or leave it out"
            )
        return
    if isolation == "inline":
        raise UsageError(
            f"isolation='inline' runs trials in this process; use it with engine='local', not {name!r}"
        )
    if importlib.util.find_spec(CLUSTERS[name]) is None:
        raise UsageError(
            f"engine {name!r} needs the package {CLUSTERS[name]!r}, which is not installed; "
            f"{install_command(name)}"
        )


def run_tasks(
    cluster: Cluster, task: Callable[[str], T], specs: Sequence[str], slots: int
) -> list[T]:
    """Run ``task`` for each spec in parallel on ``cluster``, and return the results.

    ``task`` must be a function of an importable module; each needs ``slots`` processors.
    """
    import joblib

    with cluster.backend(len(specs), slots):
        # For a single job, joblib would run the task in this process.
        jobs = max(2, len(specs))
        return list(
            joblib.Parallel(n_jobs=jobs, batch_size=1, pre_dispatch="all")(
                joblib.delayed(task)(spec) for spec in specs
            )
        )
