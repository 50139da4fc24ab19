"""The clusters on which joblib starts worker hosts.

A task does no more than start a worker host on its node and wait for it
(`sweeper.run.cluster.placement`), so that a cluster's own restrictions on what a task may do,
and its own way of starting Python, reach no trial. It returns nothing that matters: results are read
from the database, so an engine that loses a return value loses nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sweeper.errors import UsageError
from sweeper.support.installation import install_command

CLUSTERS = {"dask": "distributed", "ray": "ray"}
"""The engines that are clusters, and the module that each needs."""


class Cluster(Protocol):
    """A cluster that is there, or that was made here; to be closed."""

    @property
    def nodes(self) -> int:
        """Return how many tasks it runs side by side at most, as far as it knows now."""
        ...

    def backend(self, tasks: int, slots: int) -> AbstractContextManager[object]:
        """Within it, joblib's tasks run there: so many, each worth ``slots`` processors."""
        ...

    def close(self) -> None:
        """Leave the cluster; end it, if it was made here."""
        ...


def check_engine(name: str, *, isolation: str = "auto", address: str | None = None) -> None:
    """Check that an engine can be used with what is asked of it.

    Raises:
        UsageError: There is no engine of that name, its package is not installed, or it cannot do
            what is asked.
    """
    if name not in ("local", *CLUSTERS):
        msg = f"there is no engine {name!r}; use 'local', 'dask' or 'ray'"
        raise UsageError(msg)
    if name == "local":
        if address is not None:
            msg = (
                f"--engine-address {address} is for a cluster; add --engine dask or --engine ray, "
                "or leave it out"
            )
            raise UsageError(msg)
        return
    if isolation == "inline":
        msg = f"isolation='inline' runs trials in this process; use it with engine='local', not {name!r}"
        raise UsageError(msg)
    if importlib.util.find_spec(CLUSTERS[name]) is None:
        msg = (
            f"engine {name!r} needs the package {CLUSTERS[name]!r}, which is not installed; "
            f"{install_command(name)}"
        )
        raise UsageError(msg)


def open_cluster(name: str, address: str | None, hosts: int) -> Cluster:
    """Join the cluster at ``address``, or make one on this machine for so many hosts.

    Raises:
        UsageError: There is no cluster at that address.
    """
    if name == "dask":
        from sweeper.run.cluster.engine_dask import DaskCluster

        return DaskCluster(address, hosts)
    from sweeper.run.cluster.engine_ray import RayCluster

    return RayCluster(address, hosts)


def run_tasks(
    cluster: Cluster, task: Callable[[str], str], specs: Sequence[str], slots: int
) -> list[str]:
    """Run ``task`` once for each spec, all side by side, and return what all have returned.

    Args:
        cluster: Where.
        task: A function of an importable module.
        specs: The argument of each.
        slots: What each is worth in processors.
    """
    import joblib

    with cluster.backend(len(specs), slots):
        # Where it thinks that one job is asked for, joblib runs the task in this very process.
        jobs = max(2, len(specs))
        return list(
            joblib.Parallel(n_jobs=jobs, batch_size=1, pre_dispatch="all")(
                joblib.delayed(task)(spec) for spec in specs
            )
        )
