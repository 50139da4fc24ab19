"""Placement of a worker host on a node of a cluster: the `HostSpec` as text, and the task that starts the host.

The text goes through the host's standard input and not onto its command line, because it contains the
database's URL and, for a study from a notebook, the definition. The host is a detached process, so that
it survives the driver, and the end of the cluster's own processes when the driver is lost.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from sweeper.run.options import HostSpec

_LAST_LINES = 20
"""Number of lines shown of a failed host's log."""


@dataclass(frozen=True)
class HostEnd:
    """End of a worker host: its exit code, the file with its output, and that file's last lines."""

    number: int
    machine: str
    code: int
    log: str
    last_lines: str

    def to_text(self) -> str:
        """Return the text for `HostEnd.read`."""
        return _ENDS.dump_json(self).decode()

    @classmethod
    def read(cls, text: str) -> HostEnd:
        """Return the inverse of `to_text`."""
        return _ENDS.validate_json(text)


_SPECS: TypeAdapter[HostSpec] = TypeAdapter(HostSpec)
_ENDS: TypeAdapter[HostEnd] = TypeAdapter(HostEnd)


def write_spec(spec: HostSpec) -> str:
    """Return the text for `read_spec`."""
    return _SPECS.dump_json(spec).decode()


def read_spec(text: str) -> HostSpec:
    """Return the inverse of `write_spec`.

    Raises:
        ValueError: The text is not a spec.
    """
    return _SPECS.validate_json(text)


def run_host(text: str) -> str:
    """Start the worker host of a `HostSpec` on this machine, wait for it, and return its `HostEnd` as text."""
    spec = read_spec(text)
    machine = socket.gethostname()
    log = spec.options.paths(spec.study).worker_log(f"{spec.engine}-{machine}-{spec.number}")
    log.parent.mkdir(parents=True, exist_ok=True)
    begins = log.stat().st_size if log.exists() else 0
    code = _run_detached(["-P", "-m", "sweeper", "worker", spec.study, "--ordered"], text, log)
    with log.open("rb") as output:
        output.seek(begins)
        lines = output.read().decode(errors="replace").splitlines()
    last_lines = "\n".join(lines[-_LAST_LINES:])
    return HostEnd(spec.number, machine, code, str(log), last_lines).to_text()


def _run_detached(words: list[str], text: str, log: Path) -> int:
    """Run Python with ``words`` and input ``text`` in a detached process; return its exit code."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as ended:
        try:
            with log.open("ab") as output:
                starter = subprocess.Popen(
                    [
                        *(
                            sys.executable,
                            "-P",
                            "-m",
                            "sweeper.run.cluster.detached",
                            str(writing),
                        ),
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
