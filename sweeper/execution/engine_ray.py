"""Ray: a cluster at an address, or one made on this machine.

Ray's servers listen on every interface, and whoever they let in may run code. So a cluster that is
made here asks for a token that only the processes of this run know.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sweeper.errors import UsageError

__all__ = ["RayCluster"]


class RayCluster:
    """A connection to Ray.

    Args:
        address: Of the cluster, such as ``auto`` or ``ray://10.0.0.1:10001``; None for one of this
            machine's own.
        hosts: Processors that a cluster made here says it has; each will run one worker host.

    Raises:
        UsageError: There is no cluster at the address, or one made here would be open to all.
    """

    def __init__(self, address: str | None, hosts: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        imported = sys.modules.get("ray")
        self._ours = imported is None or not imported.is_initialized()
        if not self._ours:
            return
        if address is None:
            _let_nobody_else_in(imported=imported is not None)
        import ray

        try:
            if address is None:
                ray.init(
                    num_cpus=hosts,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            else:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, OSError, ValueError) as error:
            msg = (
                f"there is no Ray cluster at {address} ({error}); give the address that `ray start "
                "--head` prints, or leave --engine-address out"
            )
            raise UsageError(msg) from error

    @property
    def nodes(self) -> int:
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    def backend(self, tasks: int, slots: int) -> AbstractContextManager[object]:
        return self._backend(tasks, slots)

    @contextmanager
    def _backend(self, tasks: int, slots: int) -> Iterator[None]:
        import joblib
        from ray.util.joblib import register_ray

        register_ray()
        # An actor for which there is no room would be waited for without end.
        room = tasks > 1 and tasks * slots <= self.nodes
        arguments = {"num_cpus": slots if room else 0, "scheduling_strategy": "SPREAD"}
        with joblib.parallel_config(backend="ray", ray_remote_args=arguments):
            yield

    def close(self) -> None:
        import ray

        if self._ours:
            ray.shutdown()


def _let_nobody_else_in(*, imported: bool) -> None:
    """Have the cluster that this process is about to make, and its clients, use a token.

    Ray reads that when it is imported.

    Raises:
        UsageError: It is imported already.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return
    if imported:
        msg = (
            "ray was imported here before, so a cluster made now could ask nobody for a token; set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before that, or call ray.init() yourself and "
            "sweeper uses that cluster"
        )
        raise UsageError(msg)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
