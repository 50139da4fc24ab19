"""Capabilities of this machine: process start, kernels, memory and limits.

TensorFlow is asked in a process of its own: it is imported here by nothing, and may crash.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from sweeper.records.diagnoses import Finding
from sweeper.report.formats import size_text
from sweeper.settings import available_cores

_LIMIT = 180.0
"""Seconds for TensorFlow to be imported and to compute something."""

_TRIAL_BYTES = 500 * 2**20
"""About what a trial of a small network takes, TensorFlow included."""

_SHARED = Path("/dev/shm")  # noqa: S108 - looked at; nothing is put there
_LEAST_FILES = 1024
_LEAST_SHARED = 64 * 2**20

_PROBE = """
import json, os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
tf.keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
twice = []
for _ in range(2):
    tf.keras.utils.set_random_seed(1)
    image, kernel = tf.random.normal((4, 16, 16, 3)), tf.random.normal((3, 3, 3, 8))
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        loss = tf.reduce_sum(tf.nn.conv2d(image, kernel, 1, "SAME") ** 2)
    twice.append(tape.gradient(loss, kernel).numpy().tobytes())
print("sweeper:" + json.dumps({
    "devices": [d.device_type for d in tf.config.list_physical_devices()],
    "repeats": twice[0] == twice[1],
}))
"""

Asked = Callable[[], Mapping[str, Any]]
"""What TensorFlow said of itself: ``devices`` and ``repeats``, or ``error``."""


def machine_findings(workers: int, ask: Asked | None = None) -> Iterator[Finding]:
    """Look at the platform, the processor, memory, limits, and what TensorFlow says.

    Args:
        workers: Trials side by side.
        ask: Asks TensorFlow; by default in a process of its own.
    """
    yield _processes(sys.platform, can_fork=hasattr(os, "fork"))
    cores = available_cores()
    yield Finding(
        "machine",
        "cores",
        "ok" if workers <= cores else "note",
        f"{cores}, for {workers} workers",
        "one a worker, or more",
        "" if workers <= cores else f"--workers {cores}: more make each trial slower",
    )
    free = int(psutil.virtual_memory().available)
    wanted = workers * _TRIAL_BYTES
    yield Finding(
        "machine",
        "memory",
        "ok" if free >= wanted else "note",
        f"{size_text(free)} available",
        f"{size_text(wanted)} for {workers} workers of a small network each",
        "" if free >= wanted else "use fewer --workers; `sweeper check FILE` measures a trial",
    )
    yield from _limits()
    yield from _tensorflow((ask or _ask)())


def _processes(platform: str, *, can_fork: bool) -> Finding:
    forks = can_fork and platform.startswith("linux")
    return Finding(
        "machine",
        "processes",
        "ok" if forks else "note",
        f"{platform}: trials are {'forked from a warm server' if forks else 'spawned'}",
        "Linux, where a trial's process is forked",
        "" if forks else "nothing is lost but seconds: each trial imports TensorFlow anew",
    )


def _limits() -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = files in (-1, resource.RLIM_INFINITY) or files >= _LEAST_FILES
    yield Finding(
        "machine",
        "open files",
        "ok" if enough else "note",
        f"a process may have {files} open (ulimit -n), at most {most}",
        f"{_LEAST_FILES} or more",
        "" if enough else f"ulimit -n {_LEAST_FILES}",
    )
    address, _ = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = address in (-1, resource.RLIM_INFINITY)
    yield Finding(
        "machine",
        "address space",
        "ok" if unlimited else "note",
        "unlimited" if unlimited else f"{size_text(address)} a process (ulimit -v)",
        "unlimited: TensorFlow reserves more than it uses",
        "" if unlimited else "ulimit -v unlimited",
    )
    if _SHARED.is_dir():
        free = shutil.disk_usage(_SHARED).free
        yield Finding(
            "machine",
            str(_SHARED),
            "ok" if free >= _LEAST_SHARED else "note",
            f"{size_text(free)} free",
            f"{size_text(_LEAST_SHARED)} or more, for the engines dask and ray",
            "" if free >= _LEAST_SHARED else "in a container: docker run --shm-size 1g",
        )


def _tensorflow(said: Mapping[str, Any]) -> Iterator[Finding]:
    if "error" in said:
        yield Finding(
            "machine",
            "TensorFlow",
            "broken",
            said["error"],
            "a Python that imports TensorFlow and computes something",
            'see what `python -c "import tensorflow"` says',
        )
        return
    devices = said["devices"]
    gpus = devices.count("GPU")
    yield Finding(
        "machine",
        "devices",
        "ok",
        ", ".join(devices),
        "a processor; GPUs where there are some (--gpus all binds slots to them)",
        "" if gpus else "where a GPU should be here, see what nvidia-smi says",
    )
    repeats = said["repeats"]
    yield Finding(
        "machine",
        "deterministic kernels",
        "ok" if repeats else "unpromised",
        "a convolution's gradient is the same bits twice" if repeats else "it differs from itself",
        "the same bits, which exact resumption needs",
        ""
        if repeats
        else "another version of TensorFlow or of the driver; else deterministic=False",
    )


def _ask() -> Mapping[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("sweeper:")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"error": f"exited with {done.returncode}: {last}"}
    answer: dict[str, Any] = json.loads(lines[0].removeprefix("sweeper:"))
    return answer
