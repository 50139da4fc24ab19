"""`sweeper doctor`: versions of packages, TensorFlow's kernels, and the disk of the database.

TensorFlow is checked in a separate process, because it may crash and this one does not import it.
"""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

from sweeper.db.faults import parse_url
from sweeper.declarations.settings import Settings
from sweeper.records.diagnoses import Diagnosis, Diagnostic, Level
from sweeper.support.installation import DISTRIBUTION, VERSION, install_command
from sweeper.support.versions import TESTED, Environment, kept_result, version_of

_LIMIT = 180.0
"""Time limit in seconds for importing TensorFlow and running ops."""

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


def _ask() -> Mapping[str, Any]:
    """Run TensorFlow in another process; return ``devices`` and ``repeats``, or ``error``."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    lines = [line for line in process.stdout.splitlines() if line.startswith("sweeper:")]
    if process.returncode or not lines:
        last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"error": f"exited with {process.returncode}: {last}"}
    answer: dict[str, Any] = json.loads(lines[0].removeprefix("sweeper:"))
    return answer


def tensorflow_findings() -> Iterator[Diagnostic]:
    """Check that TensorFlow runs, which devices it has, and that a gradient repeats bit for bit."""
    answer = _ask()
    if "error" in answer:
        yield Diagnostic(
            "machine",
            "TensorFlow",
            "broken",
            answer["error"],
            "a Python that can import TensorFlow and run ops",
            'look at the output of `python -c "import tensorflow"`',
        )
        return
    devices = answer["devices"]
    gpus = devices.count("GPU")
    yield Diagnostic(
        "machine",
        "devices",
        "ok",
        ", ".join(devices),
        "a CPU, and GPUs if there are any (--gpus all binds slots to them)",
        "" if gpus else "if there should be a GPU, look at the output of nvidia-smi",
    )
    level: Level = "ok"
    observed = "a convolution's gradient is the same bits twice"
    advice = ""
    if not answer["repeats"]:
        level = "unpromised"
        observed = "it differs between two runs"
        advice = (
            "try another version of TensorFlow or of the driver; otherwise set deterministic=False"
        )
    expected = "the same bits in each run, which an exact resume needs"
    yield Diagnostic("machine", "deterministic kernels", level, observed, expected, advice)


_EXTRA = re.compile(r'extra == "([^"]+)"')


def package_findings() -> Iterator[Diagnostic]:
    """Check the versions of Python, sweeper, its requirements, and installed packages of its extras."""
    python = f"{platform.python_version()} ({sys.executable})"
    yield Diagnostic("packages", "Python", "ok", python, "3.11 or newer")
    yield Diagnostic("packages", "sweeper", "ok", VERSION, "any version")
    yield _exact_versions(Environment.current())
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        texts = []  # imported from a checkout
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        version = version_of(requirement.name)
        extra = _EXTRA.search(str(marker or ""))
        if marker is not None and not marker.evaluate({"extra": extra[1] if extra else ""}):
            continue
        fits = bool(version) and Version(version) in requirement.specifier
        name = requirement.name
        expected = str(requirement.specifier)
        observed = version or "not installed"
        if extra is None:
            advice = "" if fits else install_command("", f"{name}{expected}")
            level: Level = "ok" if fits else "broken"
            yield Diagnostic("packages", name, level, observed, expected or "any version", advice)
        elif version and not fits:
            name = f"[{extra[1]}] {name}"
            expected = f"{expected}; only needed if you use it"
            yield Diagnostic(
                "packages", name, "note", observed, expected, install_command(extra[1])
            )


def _exact_versions(environment: Environment) -> Diagnostic:
    """Return whether a resume is exact under these versions: by the project's tests, or by the self-test."""
    tested = ", ".join(" with ".join(pair) for pair in sorted(TESTED))
    expected = f"tested minor releases of Keras with TensorFlow ({tested}), or a passed self-test"
    result = None if environment.tested else kept_result(environment)
    level: Level = "ok"
    if environment.tested:
        observed = "tested"
        advice = ""
    elif result is None:
        level = "note"
        observed = "not tested"
        advice = "the next run tests them, in some seconds"
    elif result.passed:
        observed = "its self-test passed"
        advice = ""
    else:
        level = "unpromised"
        observed = f"the self-test failed: {'; '.join(result.differences)}"
        advice = "install tested versions"
    observed = f"{environment.described}: {observed}"
    return Diagnostic("packages", "exactness", level, observed, expected, advice)


_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "lustre", "glusterfs", "afs", "beegfs")
"""Prefixes of the kinds of network file systems."""


def disk_finding(storage: str) -> Diagnostic:
    """Check that the SQLite database of a URL is not on a network's disk; the file need not exist."""
    url = parse_url(storage)
    if url.get_backend_name() != "sqlite":
        observed = "PostgreSQL keeps the studies"
        expected = "a server, or a file on a local disk"
        return Diagnostic("database", "disk", "ok", observed, expected)
    file = Path(str(url.database)).absolute()
    kind = _file_system(file.resolve())
    network = kind.lower().startswith(_NETWORK)
    return Diagnostic(
        "database",
        "disk",
        "unpromised" if network else "ok",
        f"{file} is on {kind or 'an unknown kind of disk'}{', on a network' if network else ''}",
        "a local disk, because SQLite's locks cannot be relied on over a network",
        "keep the database on a local disk or in PostgreSQL (--storage)" if network else "",
    )


def _file_system(path: Path) -> str:
    """Return the kind of file system of ``path``; empty if unknown."""
    mounted = [
        (len(Path(part.mountpoint).parts), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if path.is_relative_to(part.mountpoint)
    ]
    return max(mounted)[1] if mounted else ""


def diagnose(settings: Settings) -> Diagnosis:
    """Check the packages, TensorFlow and the disk of the database of ``settings``."""
    return Diagnosis((*package_findings(), *tensorflow_findings(), disk_finding(settings.storage)))
