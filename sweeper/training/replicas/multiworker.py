"""`MultiWorker`: a trial's replicas in several processes of one host, one cluster of TensorFlow's.

TensorFlow's `MultiWorkerMirroredStrategy` is made in each process, which is given where all of them
listen. Here nobody sets ``TF_CONFIG``: sweeper starts the processes, and knows.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from sweeper.declared.arguments import checked_whole
from sweeper.errors import ExecutionError, FactoryError

_HOST = "127.0.0.1"


class ClusterError(ExecutionError):
    """The processes of a trial did not come together, or one was lost: another attempt may do."""


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """Which of a trial's processes this one is.

    Attributes:
        index: From 0; 0 is the one that the worker supervises.
        addresses: Where each process listens, as ``host:port``.
    """

    index: int
    addresses: tuple[str, ...]

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self.addresses)

    def __str__(self) -> str:
        return f"process {self.index} of {self.processes}"


class MultiWorker:
    """For ``Study(strategy=MultiWorker(processes=2))``: each trial trains in several processes.

    All are on one host, and one is a replica, or as many as it has GPUs: the GPUs that the trial
    sees are shared out equally, in their order. The strategy is TensorFlow's
    `MultiWorkerMirroredStrategy`.

    Args:
        processes: How many; at least 2.

    Raises:
        DefinitionError: It is no such number.

    Examples:
        >>> from sweeper import MultiWorker
        >>> MultiWorker(processes=2)
        MultiWorker(processes=2)
    """

    def __init__(self, processes: int) -> None:
        self.processes = checked_whole(processes, "MultiWorker(processes=…)", least=2)
        # The fingerprint of a study's code follows it, and so knows the number.
        self.__wrapped__ = functools.partial(_called, processes=self.processes)

    def __repr__(self) -> str:
        return f"MultiWorker(processes={self.processes})"

    def __call__(self, trial: Any) -> Any:
        """Refuse to be called: what makes the strategy is each of the trial's processes.

        Raises:
            FactoryError: Always.
        """
        return self.__wrapped__(trial)

    def strategy(self, task: ClusterTask | None) -> Any:
        """The strategy, in one of the trial's processes; it waits for the others.

        Args:
            task: Which process this is; None where nothing is trained but in this one process,
                with one replica: in a rehearsal, and where checkpoints are measured.

        Raises:
            FactoryError: TensorFlow has run already, ``TF_CONFIG`` is set, or the GPUs cannot be
                shared out equally.
            ClusterError: TensorFlow could not bring the processes together.
        """
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if task is None:
            return tf.distribute.MirroredStrategy(
                ["GPU:0" if gpus else "CPU:0"],
                cross_device_ops=tf.distribute.ReductionToOneDevice(),
            )
        _refuse_tf_config()
        _refuse_started()
        own = self._share(gpus, task.index)
        if gpus:
            tf.config.set_visible_devices(own, "GPU")
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(task.addresses)}),
            task_type="worker",
            task_id=task.index,
            num_accelerators={"GPU": len(own)} if own else {},
            rpc_layer="grpc",
        )
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        except (tf.errors.OpError, RuntimeError) as error:
            address = task.addresses[task.index]
            msg = (
                f"{task} could not join the others at {', '.join(task.addresses)}: {error}; is "
                f"{address} taken by another program?"
            )
            raise ClusterError(msg) from error
        _take_sigterm_back()
        return strategy

    def _share(self, gpus: list[Any], index: int) -> list[Any]:
        each, over = divmod(len(gpus), self.processes)
        if over:
            msg = (
                f"{self!r}: the trial sees {len(gpus)} GPUs, which {self.processes} processes cannot "
                f"share equally; give a number that divides {len(gpus)}, or show the trial other GPUs "
                "(CUDA_VISIBLE_DEVICES)"
            )
            raise FactoryError(msg)
        return gpus[index * each : (index + 1) * each]


def processes_of(strategy: object) -> int:
    """In how many processes a trial of a study with such a ``strategy`` trains."""
    return strategy.processes if isinstance(strategy, MultiWorker) else 1


def free_addresses(count: int) -> tuple[str, ...]:
    """So many addresses of this host at which nobody listens at the moment.

    Raises:
        ClusterError: There are none.
    """
    taken: list[socket.socket] = []
    try:
        taken.extend(socket.create_server((_HOST, 0)) for _ in range(count))
        return tuple(f"{_HOST}:{each.getsockname()[1]}" for each in taken)
    except OSError as error:
        msg = f"no {count} free ports on {_HOST} for the processes of a trial: {error}"
        raise ClusterError(msg) from error
    finally:
        for each in taken:
            each.close()


def _called(trial: Any, processes: int) -> Any:
    del trial
    msg = (
        f"MultiWorker(processes={processes}) needs processes of the trial's own, and there are none "
        "here: give it as Study(strategy=…) and run the study with isolation='fork' or 'spawn' "
        "('auto' chooses), not 'inline'"
    )
    raise FactoryError(msg)


def _refuse_tf_config() -> None:
    given = os.environ.get("TF_CONFIG")
    if given:
        msg = (
            f"TF_CONFIG is set, to {given[:200]!r}: it says where processes on several hosts listen, and "
            "those of a trial are all on one host, started and connected by sweeper. Unset it for the "
            "worker; other hosts can take other trials (`sweeper worker`)"
        )
        raise FactoryError(msg)


def _take_sigterm_back() -> None:
    """Have Python's handler called again: TensorFlow takes SIGTERM for the news of a preemption."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not None:
        signal.signal(signal.SIGTERM, before)


def _refuse_started() -> None:
    from tensorflow.python.eager import context

    if context.context()._context_handle is not None:
        msg = (
            "MultiWorker: TensorFlow has already run in the trial's process, so it can join no other: "
            "importing the study's module makes a tensor, a model or a strategy; do that in the factories"
        )
        raise FactoryError(msg)
