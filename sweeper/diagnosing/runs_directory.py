"""Capabilities of the file system below the runs directory, tested with files that are removed again."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from sweeper.checkpoints.operations import FileOperations
from sweeper.records.diagnoses import Finding
from sweeper.report.formats import size_text

_LEAST_FREE = 2**30
_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "lustre", "glusterfs", "afs", "beegfs")
"""File systems that several machines share begin so."""


def directory_findings(
    runs_dir: Path, *, sqlite: bool, operations: FileOperations | None = None
) -> Iterator[Finding]:
    """Look at where a study's files go.

    Args:
        runs_dir: The runs directory, which need not be there yet.
        sqlite: Whether the database is a file.
        operations: What checkpoints are written with.
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
            "a directory that can be written",
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
        "" if free >= _LEAST_FREE else "`sweeper gc` frees what no rule keeps; or --runs-dir",
    )
    yield _kind(_file_system(there), sqlite=sqlite)


def _tried(made: Path, operations: FileOperations) -> Iterator[Finding]:
    yield _trial(
        "rename and fsync",
        lambda: _commit(made, operations),
        "a directory appears whole under its name, and stays",
        "checkpoints cannot be committed safely here: use a local disk (--runs-dir, --checkpoints)",
    )
    yield _trial(
        "locks",
        lambda: _lock(made),
        "a lock that one holds, another does not get",
        "readers of checkpoints cannot be seen here: use a local disk (--runs-dir)",
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
    """Do what a checkpoint's commit does, and look whether it did it."""
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
        msg = "a renamed directory is not what it was"
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
    """Return the kind of the file system that ``path`` is on; empty if unknown."""
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
        "one of this machine's own, since SQLite keeps the study in a file"
        if sqlite
        else "any: the study is kept in PostgreSQL",
        "keep the database on a local disk or in PostgreSQL (--storage)"
        if network and sqlite
        else "",
    )
