"""A worker host on a node of a cluster: what it is told, and the task that starts it there.

The order goes through the host's standard input, never onto its command line: it holds the
database's URL, and the definition of a study from a notebook, which no file has. The host is
nobody's child, so that it outlives the driver, and whatever the cluster does to its own processes
when it loses sight of the driver.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from sweeper.execution.channel import StudySource
from sweeper.paths import RunPaths

__all__ = ["HostEnd", "HostOrder", "read_order", "run_host"]

_TOLD = 20
"""So many of a host's last lines are told of one that has failed."""


@dataclass(frozen=True)
class HostOrder:
    """What a worker host is told.

    Attributes:
        number: Counts the hosts of one placement, from 0.
        placed_from: The name of the machine of the run that placed it.
        source: The study's definition, where it is in no file; its own file otherwise.
        checkpoints: Where checkpoints go; None for ``runs_dir``.
    """

    study: str
    slots: int
    storage: str = field(repr=False)
    runs_dir: str
    engine: str
    isolation: str
    number: int
    placed_from: str
    lease_seconds: float
    fail_fast: bool = False
    grace: float | None = None
    gpus: str | None = None
    trials_per_gpu: int = 1
    gpu_memory: int | None = None
    source: StudySource | None = None
    checkpoints: str | None = None

    def to_text(self) -> str:
        """As `read_order` reads it."""
        return _ORDERS.dump_json(self).decode()


@dataclass(frozen=True)
class HostEnd:
    """How a worker host ended: its exit code, and where it said what."""

    number: int
    machine: str
    code: int
    log: str
    last_lines: str

    def to_text(self) -> str:
        """As `HostEnd.read` reads it."""
        return _ENDS.dump_json(self).decode()

    @classmethod
    def read(cls, text: str) -> HostEnd:
        """The inverse of `to_text`."""
        return _ENDS.validate_json(text)


_ORDERS: TypeAdapter[HostOrder] = TypeAdapter(HostOrder)
_ENDS: TypeAdapter[HostEnd] = TypeAdapter(HostEnd)


def read_order(text: str) -> HostOrder:
    """The order that `HostOrder.to_text` wrote.

    Raises:
        ValueError: It is none.
    """
    return _ORDERS.validate_json(text)


def run_host(text: str) -> str:
    """Start the worker host that is ordered, on this machine, and wait for its end."""
    order = read_order(text)
    machine = socket.gethostname()
    paths = RunPaths(Path(order.runs_dir), order.study)
    log = paths.worker_log(f"{order.engine}-{machine}-{order.number}")
    log.parent.mkdir(parents=True, exist_ok=True)
    begins = log.stat().st_size if log.exists() else 0
    code = _run_detached(["-P", "-m", "sweeper", "worker", order.study, "--ordered"], text, log)
    with log.open("rb") as said:
        said.seek(begins)
        lines = said.read().decode(errors="replace").splitlines()
    told = "\n".join(lines[-_TOLD:])
    return HostEnd(order.number, machine, code, str(log), told).to_text()


def _run_detached(words: list[str], text: str, log: Path) -> int:
    """Run Python with ``words``, given ``text``, as nobody's child; its exit code."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as ended:
        try:
            with log.open("ab") as output:
                starter = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "sweeper.execution.detached", str(writing)),
                        *(sys.executable, *words),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[writing],
                )
        finally:
            os.close(writing)
        starter.communicate(text.encode())
        code = ended.read()
    return int(code) if code else -1
