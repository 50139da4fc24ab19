"""Ray: a cluster at an address, or one made on this machine.

Whoever Ray's servers let in may run code, and by default they listen on every interface. So a cluster
that is made here asks for a token that only the processes of this run know, and is on the loopback
alone, as Ray's own are on macOS and Windows.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sweeper.errors import UsageError
from sweeper.support.shown import shown_text, shown_url

_FEWEST = 2
"""joblib runs a single job in the calling process, so it is always asked for two."""

_CLOSED = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: the loopback, and no cluster
}


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
        self._made_for = hosts if self._ours and address is None else None
        if self._ours:
            if address is None:
                _let_nobody_else_in(imported=imported is not None)
            _join(address, hosts)
        processors = self._processors()
        if processors < _FEWEST:
            self.close()
            msg = (
                f"the Ray cluster at {shown_url(address)} has {processors} "
                f"processor{'' if processors == 1 else 's'}, and joblib needs {_FEWEST} or more; "
                "the number need not be real, so start it with: ray start --head "
                f"--num-cpus={_FEWEST}"
            )
            raise UsageError(msg)

    @property
    def nodes(self) -> int:
        return self._processors() if self._made_for is None else self._made_for

    def _processors(self) -> int:
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


def _join(address: str | None, hosts: int) -> None:
    import ray

    try:
        if address is None:
            ray.init(
                num_cpus=max(_FEWEST, hosts),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            _check_on_loopback()
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, ValueError) as error:
        msg = (
            f"there is no Ray cluster at {shown_url(address)} ({shown_text(str(error))}); give the "
            "address that `ray start --head` prints, or leave --engine-address out"
        )
        raise UsageError(msg) from error


def _let_nobody_else_in(*, imported: bool) -> None:
    """Have the cluster that this process is about to make, and its clients, use a token.

    Ray reads that when it is imported.

    Raises:
        UsageError: It is imported already.
    """
    if imported:
        if all(os.environ.get(name) == value for name, value in _CLOSED.items()):
            return
        msg = (
            "ray was already imported in this process, so a new cluster would be open to others; "
            f"set {' '.join(f'{name}={value}' for name, value in _CLOSED.items())} and "
            "RAY_AUTH_TOKEN before the import, or call ray.init() yourself and sweeper uses that "
            "cluster"
        )
        raise UsageError(msg)
    if os.environ.get("RAY_AUTH_MODE") != "token":
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.update(_CLOSED)


def _check_on_loopback() -> None:
    """Leave a cluster that was made here and listens elsewhere than on the loopback.

    Raises:
        UsageError: It does, because another version of Ray goes by another setting.
    """
    import ray

    addresses = [str(node["NodeManagerAddress"]) for node in ray.nodes()]
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        return
    ray.shutdown()
    msg = (
        f"the Ray cluster made here listens on {', '.join(addresses)}; expected only the loopback "
        "interface. Make one with `ray start --head` and give its address with --engine-address, "
        "or use --engine dask"
    )
    raise UsageError(msg)
