"""`sweeper doctor`: checks of this machine, its packages, its files and the database.

TensorFlow is checked in a separate process, because it may crash and this one does not import it.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

from sweeper.checkpoint.operations import FileOperations
from sweeper.db.database import Database
from sweeper.db.maintenance import DatabaseHealth, read_health
from sweeper.errors import DatabaseUnavailableError, DatabaseVersionError
from sweeper.records.diagnoses import Diagnosis, Finding
from sweeper.spec.settings import Settings, available_cores
from sweeper.support.installation import DISTRIBUTION, VERSION, install_command
from sweeper.support.shown import shown_url
from sweeper.views.formats import size_text, time_text

_LIMIT = 180.0
"""Time limit in seconds for importing TensorFlow and running ops."""

_TRIAL_BYTES = 500 * 2**20
"""Approximate memory of a trial of a small network, TensorFlow included."""

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
"""Function that runs TensorFlow, and returns ``devices`` and ``repeats``, or ``error``."""


def machine_findings(workers: int, ask: Asked | None = None) -> Iterator[Finding]:
    """Check the platform, the processor, memory, limits and TensorFlow.

    Args:
        workers: Trials side by side.
        ask: Runs TensorFlow; by default in a separate process.
    """
    yield _processes(sys.platform, can_fork=hasattr(os, "fork"))
    cores = available_cores()
    yield Finding(
        "machine",
        "cores",
        "ok" if workers <= cores else "note",
        f"{cores}, for {workers} workers",
        "at least one for each worker",
        "" if workers <= cores else f"use --workers {cores}: with more, each trial is slower",
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
        "Linux, where processes can be forked",
        ""
        if forks
        else "nothing: only that each trial imports TensorFlow again, which takes some seconds",
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
        "unlimited, because TensorFlow reserves more than it uses",
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
            "a Python that can import TensorFlow and run ops",
            'look at the output of `python -c "import tensorflow"`',
        )
        return
    devices = said["devices"]
    gpus = devices.count("GPU")
    yield Finding(
        "machine",
        "devices",
        "ok",
        ", ".join(devices),
        "a CPU, and GPUs if there are any (--gpus all binds slots to them)",
        "" if gpus else "if there should be a GPU, look at the output of nvidia-smi",
    )
    repeats = said["repeats"]
    yield Finding(
        "machine",
        "deterministic kernels",
        "ok" if repeats else "unpromised",
        "a convolution's gradient is the same bits twice"
        if repeats
        else "it differs between two runs",
        "the same bits in each run, which an exact resume needs",
        ""
        if repeats
        else (
            "try another version of TensorFlow or of the driver; otherwise set deterministic=False"
        ),
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


_LEAST_PYTHON = (3, 11)
_NO_EXTRA = "test"
"""Extra whose packages only the tests need."""

Installed = Callable[[str], str | None]
"""The version of an installed package; None where it is not installed."""


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def package_findings(installed: Installed = installed_version) -> Iterator[Finding]:
    """Check Python, sweeper, its requirements and its extras.

    Args:
        installed: Returns the version of a package.
    """
    python = platform.python_version()
    least = ".".join(map(str, _LEAST_PYTHON))
    yield Finding(
        "packages",
        "Python",
        "ok" if sys.version_info >= _LEAST_PYTHON else "broken",
        f"{python} ({sys.executable})",
        f"{least} or newer",
        "" if sys.version_info >= _LEAST_PYTHON else "make an environment with a newer Python",
    )
    yield Finding("packages", "sweeper", "ok", VERSION, "any version")
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        texts = []
    required = [Requirement(text) for text in texts]
    if not required:
        yield Finding(
            "packages",
            "requirements",
            "note",
            f"{DISTRIBUTION} is not installed, but imported from a checkout",
            "an installed package, whose metadata name the versions that it needs",
            install_command(),
        )
    for requirement in required:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _requirement(requirement, installed)
    yield from _extras(required, installed)


def _requirement(requirement: Requirement, installed: Installed) -> Finding:
    found = installed(requirement.name)
    fits = found is not None and Version(found) in requirement.specifier
    return Finding(
        "packages",
        requirement.name,
        "ok" if fits else "broken",
        found or "not installed",
        str(requirement.specifier) or "any version",
        "" if fits else install_command("", f"{requirement.name}{requirement.specifier}"),
    )


def _extras(required: Sequence[Requirement], installed: Installed) -> Iterator[Finding]:
    """Yield a finding for each extra: installed, partly or not; none is required."""
    names = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") if required else None
    for extra in names or ():
        if extra == _NO_EXTRA:
            continue
        wanted = [r for r in required if r.marker and r.marker.evaluate({"extra": extra})]
        wanted = [r for r in wanted if not (r.marker and r.marker.evaluate({"extra": ""}))]
        lacking = [r.name for r in wanted if installed(r.name) is None]
        misfits = [
            f"{r.name} {found}"
            for r in wanted
            if (found := installed(r.name)) is not None and Version(found) not in r.specifier
        ]
        seen = ", ".join([f"without {', '.join(lacking)}"] * bool(lacking) + misfits) or ", ".join(
            f"{r.name} {installed(r.name)}" for r in wanted
        )
        yield Finding(
            "packages",
            f"[{extra}]",
            "note" if misfits else "ok",
            seen if not lacking else f"not installed ({seen})",
            ", ".join(f"{r.name}{r.specifier}" for r in wanted) + "; only needed if you use it",
            install_command(extra) if lacking or misfits else "",
        )


_LEAST_FREE = 2**30
_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "lustre", "glusterfs", "afs", "beegfs")
"""Prefixes of the kinds of network file systems."""


def directory_findings(
    runs_dir: Path, *, sqlite: bool, operations: FileOperations | None = None
) -> Iterator[Finding]:
    """Check the runs directory.

    Args:
        runs_dir: The runs directory, which need not exist yet.
        sqlite: Whether the database is a file.
        operations: The file operations for checkpoints.
    """
    there = next(p for p in (runs_dir.absolute(), *runs_dir.absolute().parents) if p.exists())
    where = str(runs_dir) if there == runs_dir.absolute() else f"{runs_dir}, to be made in {there}"
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".sweeper-doctor-") as made:
            yield Finding("files", "runs directory", "ok", f"{where}: writable", "writable")
            yield from _tried(Path(made), operations or FileOperations())
    except OSError as error:
        yield Finding(
            "files",
            "runs directory",
            "broken",
            f"{where}: {error.strerror or error}",
            "a writable directory",
            "name another one (--runs-dir, SWEEPER_RUNS_DIR), or change its permissions",
        )
        return
    free = shutil.disk_usage(there).free
    yield Finding(
        "files",
        "disk space",
        "ok" if free >= _LEAST_FREE else "note",
        f"{size_text(free)} free",
        f"{size_text(_LEAST_FREE)} or more; `sweeper check FILE` estimates a study's",
        ""
        if free >= _LEAST_FREE
        else "run `sweeper gc`, which deletes what no rule keeps, or use another --runs-dir",
    )
    yield _kind(_file_system(there), sqlite=sqlite)


def _tried(made: Path, operations: FileOperations) -> Iterator[Finding]:
    yield _trial(
        "rename and fsync",
        lambda: _commit(made, operations),
        "a renamed directory appears complete and stays",
        "checkpoints cannot be committed safely here: use a local disk (--runs-dir, --checkpoints)",
    )
    yield _trial(
        "locks",
        lambda: _lock(made),
        "a lock that one process holds is refused to another",
        "readers of checkpoints cannot be detected here: use a local disk (--runs-dir)",
    )


def _trial(name: str, attempt: object, expected: str, advice: str) -> Finding:
    seen = "as expected"
    try:
        attempt()  # type: ignore[operator]
    except OSError as error:
        seen = error.strerror or str(error)
        return Finding("files", name, "unpromised", seen, expected, advice)
    return Finding("files", name, "ok", seen, expected)


def _commit(made: Path, operations: FileOperations) -> None:
    """Commit a directory as a checkpoint is committed, and check the result."""
    unfinished, committed = made / "unfinished", made / "committed"
    operations.make_directory(unfinished)
    descriptor = operations.create(unfinished / "file")
    try:
        operations.write(descriptor, memoryview(b"whole"))
        operations.fsync(descriptor)
    finally:
        operations.close(descriptor)
    operations.fsync_directory(unfinished)
    operations.rename(unfinished, committed)
    operations.fsync_directory(made)
    if unfinished.exists() or (committed / "file").read_bytes() != b"whole":
        msg = "a renamed directory has changed its content"
        raise OSError(msg)


def _lock(made: Path) -> None:
    one, other = (os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        msg = "two holders got the same lock"
        raise OSError(msg)
    finally:
        os.close(one)
        os.close(other)


def _file_system(path: Path) -> str:
    """Return the kind of file system of ``path``; empty if unknown."""
    mounted = [
        (len(Path(part.mountpoint).parts), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if path.is_relative_to(part.mountpoint)
    ]
    return max(mounted)[1] if mounted else ""


def _kind(kind: str, *, sqlite: bool) -> Finding:
    network = kind.lower().startswith(_NETWORK)
    return Finding(
        "files",
        "file system",
        "unpromised" if network and sqlite else "ok",
        f"{kind or 'unknown'}{', on a network' if network else ''}",
        "a local one, because SQLite keeps the study in a file"
        if sqlite
        else "any, because the study is in PostgreSQL",
        "keep the database on a local disk or in PostgreSQL (--storage)"
        if network and sqlite
        else "",
    )


_PATIENCE = 10.0
_CLOCKS_APART = 5.0
"""Tolerated difference of clocks in seconds; leases use only the database's clock."""


def database_findings(settings: Settings) -> Iterator[Finding]:
    """Check the database of ``settings``, without creating one."""
    url = shown_url(settings.storage)
    try:
        with Database.open(settings.storage, create=False, patience=_PATIENCE) as database:
            health = read_health(database)
            in_file = database.in_file
    except DatabaseVersionError as error:
        yield _database("broken", str(error), "tables of this version", "sweeper db upgrade")
        return
    except DatabaseUnavailableError as error:
        text = str(error)
        absent = text.startswith("there is no database") or "holds no studies" in text
        yield _database(
            "note" if absent else "broken",
            text,
            "a database; the first run creates it",
            "sweeper init" if absent else "repair it; `sweeper ls` then lists the studies",
        )
        return
    held = f"{health.studies} {'study' if health.studies == 1 else 'studies'}"
    yield _database(
        "ok", f"{url}: {held}, revision {health.revision}", "a database that can be opened"
    )
    if in_file:
        yield from _file(health)
    yield _clock(health.clock)
    yield _leases(health, settings)


def _database(level: str, seen: str, expected: str, advice: str = "") -> Finding:
    return Finding("database", "database", level, seen, expected, advice)  # type: ignore[arg-type]


def _file(health: DatabaseHealth) -> Iterator[Finding]:
    whole = not health.faults
    yield Finding(
        "database",
        "SQLite",
        "ok" if whole else "broken",
        "the quick check found no damage" if whole else "; ".join(health.faults),
        "an undamaged file",
        "" if whole else "stop the workers and restore a copy; `sqlite3 FILE .recover` saves rows",
    )
    wal = bool(health.write_ahead)
    yield Finding(
        "database",
        "journal",
        "ok" if wal else "note",
        "wal" if wal else "a rollback journal",
        "wal, in which readers do not block workers",
        "" if wal else 'while nothing uses it: sqlite3 FILE "PRAGMA journal_mode=WAL"',
    )


def _clock(ahead: float) -> Finding:
    together = abs(ahead) < _CLOCKS_APART
    way = "ahead of" if ahead > 0 else "behind"
    return Finding(
        "database",
        "clock",
        "ok" if together else "note",
        "as this machine's" if together else f"{time_text(abs(ahead))} {way} this machine's",
        f"within {_CLOCKS_APART:g} s (leases use only the database's clock)",
        "" if together else "set both by NTP, otherwise times in reports are wrong",
    )


def _leases(health: DatabaseHealth, settings: Settings) -> Finding:
    if not health.lost:
        seen = f"{health.running} running, each with its worker"
        return Finding("database", "leases", "ok", seen, "no trial open whose worker is gone")
    study = health.lost[0].rpartition(" ")[0]
    return Finding(
        "database",
        "leases",
        "note",
        "open attempts of workers that are gone: "
        f"{', '.join(health.lost[:5])}{' and more' * (len(health.lost) > 5)}",
        "no trial open whose worker is gone",
        f"{settings.command('resume', study)} resumes them from their checkpoints",
    )


def diagnose(settings: Settings) -> Diagnosis:
    """Check packages, machine, runs directory and database.

    Args:
        settings: Directories, database and number of workers.
    """
    sqlite = settings.storage.startswith("sqlite")
    return Diagnosis(
        (
            *package_findings(),
            *machine_findings(settings.workers),
            *directory_findings(settings.runs_dir, sqlite=sqlite),
            *database_findings(settings),
        )
    )
