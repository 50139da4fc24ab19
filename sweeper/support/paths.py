"""Paths of a run, temporary directories, and directories of nobody. Every path is made, and every name checked, here.

::

    runs/                                    --runs-dir, SWEEPER_RUNS_DIR
      sweeper.db                             the default database
      digits-learning-rate/                  a study
        owner.json                           which one: its identity in its database
        workers/dask-node1-0.log             output of a worker host that an engine placed
        trial-00003/                         a trial
          files/                             Trial.directory: what the user's callbacks write
          attempt-01/                        one attempt at it
            log.txt                          its standard output and error
            checkpoints/step-000000420/      its checkpoints
          end/step-000000420/                the model as training left it, once it has ended

With ``--checkpoints s3://bucket/prefix`` the directories of checkpoints and ``end`` are there
instead, with the same names below the study's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import DefinitionError, UsageError
from sweeper.support.shown import shown_url, shown_value

PROTOCOLS = ("s3", "gs", "memory")
"""URL prefixes of the supported object stores."""

_ALMOST = tuple(f"{name}:" for name in PROTOCOLS)
"""Pattern of a mistyped URL, which would otherwise become a directory's name."""

DATABASE_FILE = "sweeper.db"
"""The default database, in the runs directory."""

END_MODEL = "end"
"""The directory of a trial's model at the end."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(~[1-9][0-9]{0,5})?(~confirm)?")
_LONGEST_NAME = 100
_KEY_PART = re.compile(r"[A-Za-z0-9._=+~-]{1,255}")


def check_name(name: object, what: str = "study") -> str:
    """Return ``name`` if it is safe as a directory's name.

    Raises:
        DefinitionError: It is not a string of 1 to 100 ASCII letters, digits, ``.``, ``_`` and ``-`` that
            starts with a letter or digit and does not end with a dot; ``~`` and a number, and
            ``~confirm``, may follow, as in the names of renamed studies and of confirmations.
    """
    if not isinstance(name, str):
        raise DefinitionError(f"a {what}'s name must be a string; this one is {shown_value(name)}")
    if not _NAME.fullmatch(name) or name.endswith(".") or len(name) > _LONGEST_NAME:
        raise DefinitionError(
            f"{shown_value(name)} cannot be a {what}'s name: it becomes a directory, so use 1 to 100 ASCII "
            "letters (a to z, A to Z), digits, '.', '_' or '-', starting with a letter or digit and not "
            "ending with '.'"
        )
    return name


def is_name(text: str) -> bool:
    try:
        return check_name(text) == text
    except DefinitionError:
        return False


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """Path of an object, or prefix of several, in an object store.

    Attributes:
        protocol: One of `PROTOCOLS`.
        parts: The bucket, then each part of the key.

    Raises:
        UsageError: A part is empty, ``.`` or ``..``, or has other characters than letters, digits
            and ``._=+-``.
    """

    protocol: str
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            if not _KEY_PART.fullmatch(part) or part in (".", ".."):
                # Behind a scheme, because there a colon has something to hide.
                safe_part = shown_url(f"{self.protocol}://{part}").partition("://")[2]
                raise UsageError(
                    f"{safe_part!r} cannot be part of a place in an object store; use letters, digits, "
                    "'.', '_', '=', '+' and '-' between the slashes"
                )

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.protocol, self.parts[:-1])

    @property
    def key(self) -> str:
        """Return the bucket and the key in fsspec's form."""
        return "/".join(self.parts)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.protocol, (*self.parts, name))

    def __str__(self) -> str:
        return f"{self.protocol}://{self.key}"


Location = Path | RemotePath
"""A local directory, or a prefix in an object store."""


def parse_location(text: str) -> Location:
    """Parse a directory's path, or the URL of a bucket with or without a prefix.

    Raises:
        UsageError: It is a URL without the form ``s3://bucket/prefix`` and one of `PROTOCOLS`.
    """
    protocol, separator, rest = text.partition("://")
    if not separator and not text.lower().startswith(_ALMOST):
        return Path(text).expanduser()
    if protocol not in PROTOCOLS:
        protocols = ", ".join(f"{name}://" for name in PROTOCOLS)
        raise UsageError(f"{shown_url(text)!r} is in none of the known object stores ({protocols})")
    if "@" in rest:
        raise UsageError(
            f"{protocol}://…@… contains credentials, which would be stored and printed; give them "
            "in the environment, as for the store's own tools"
        )
    if not rest.strip("/"):
        raise UsageError(f"{shown_url(text)} names no bucket")
    return RemotePath(protocol, tuple(rest.rstrip("/").split("/")))


_ATTEMPT = re.compile(r"attempt-(\d+)")


def attempt_of(checkpoint: Location) -> int | None:
    """Return the number of the attempt that wrote a checkpoint, by its path; None for another path."""
    match = _ATTEMPT.fullmatch(checkpoint.parent.parent.name)
    return None if match is None else int(match[1])


def absolute_location(location: Location | None) -> Location | None:
    return location.absolute() if isinstance(location, Path) else location


@dataclass(frozen=True)
class RunPaths:
    """The directories of one study below ``root`` (the runs directory).

    ``checkpoints_root`` is the place of checkpoints, if it differs from ``root``.
    """

    root: Path
    study: str
    checkpoints_root: Location | None = None

    def __post_init__(self) -> None:
        check_name(self.study)

    @property
    def study_directory(self) -> Path:
        return self.root / self.study

    @property
    def study_directories(self) -> tuple[Path, ...]:
        """Return the local directories of the study's files and checkpoints: one or two."""
        apart = self.checkpoints_root
        if not isinstance(apart, Path) or apart == self.root:
            return (self.study_directory,)
        return (self.study_directory, apart / self.study)

    def worker_log(self, name: str) -> Path:
        return self.study_directory / "workers" / f"{check_name(name, 'worker')}.log"

    def trial(self, number: int) -> Path:
        return self.study_directory / f"trial-{number:05d}"

    def trial_files(self, number: int) -> Path:
        return self.trial(number) / "files"

    def attempt(self, number: int, attempt: int) -> Path:
        return self.trial(number) / f"attempt-{attempt:02d}"

    def log(self, number: int, attempt: int) -> Path:
        return self.attempt(number, attempt) / "log.txt"

    def checkpoints(self, number: int, attempt: int) -> Location:
        return self._beside_checkpoints(number, f"attempt-{attempt:02d}", "checkpoints")

    def trial_checkpoints(self, number: int) -> Location:
        return self._beside_checkpoints(number)

    def directories_of_attempt(self, checkpoint: Path, number: int) -> tuple[Path, ...]:
        """Return the local directories for checkpoints of the attempt of trial ``number`` that wrote ``checkpoint``.

        They are below the place of checkpoints, and below the runs directory.
        """
        attempt = attempt_of(checkpoint)
        if attempt is None:
            return ()
        layouts = (self, RunPaths(self.root, self.study))
        below = (layout.checkpoints(number, attempt) for layout in layouts)
        return tuple(directory for directory in below if isinstance(directory, Path))

    def present(self, checkpoint: Path, number: int) -> Path | None:
        """Return where a checkpoint of trial ``number`` is now: in these directories, or where it was; None if in neither."""
        here = self.directories_of_attempt(checkpoint, number)
        candidates = [*(directory / checkpoint.name for directory in here), checkpoint]
        return next((path for path in candidates if path.is_dir()), None)

    def end_model(self, number: int) -> Location:
        return self._beside_checkpoints(number, END_MODEL)

    def _beside_checkpoints(self, number: int, *parts: str) -> Location:
        location = self.root if self.checkpoints_root is None else self.checkpoints_root
        for part in (self.study, f"trial-{number:05d}", *parts):
            location = location / part
        return location


def end_model_beside(checkpoint: Location) -> Location:
    """Return the path of the end model of the trial that ``checkpoint`` belongs to."""
    return checkpoint.parent.parent.parent / END_MODEL


_PREFIX = "sweeper-scratch-"
_LOCK = ".in-use"
_SETTLING = 60.0
"""Seconds between the creation of a directory and of its lock."""


@contextmanager
def scratch_directory(what: str) -> Iterator[Path]:
    """Context manager for a temporary directory, with ``what`` in its name.

    After a SIGKILL a replay leaves gigabytes of checkpoints. So each directory has a
    lock, which the system releases with its last process; every new directory first removes the
    user's directories whose lock is free.
    """
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another process may remove it at the same time, and a directory that stays does no harm.
        with contextlib.suppress(OSError):
            info = directory.lstat()
            is_own_directory = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()
            if is_own_directory and time.time() - info.st_mtime > _SETTLING:
                with _locked(directory):
                    shutil.rmtree(directory)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{what}-") as name, _locked(Path(name)):
        yield Path(name)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Context manager that holds the directory's lock; BlockingIOError if another process holds it."""
    import fcntl

    descriptor = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        # The kernel releases it when its process dies, so a directory whose lock is free belongs to no
        # process.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/run/", "/var/lib/")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_DOWNLOADS = {
    "XDG_CACHE_HOME": "~/.cache",
    "KERAS_HOME": "~/.keras",
    "TFDS_DATA_DIR": "~/tensorflow_datasets",
    "SCIKIT_LEARN_DATA": "~/scikit_learn_data",
    "HF_HOME": "~/.cache/huggingface",
    "TORCH_HOME": "~/.cache/torch",
    "KAGGLEHUB_CACHE": "~/.cache/kagglehub",
    "TFHUB_CACHE_DIR": "",
    "MPLCONFIGDIR": "~/.config/matplotlib",
}
"""Environment variables that name a directory of downloads and caches, with their defaults."""


@functools.cache
def nobodys(directory: str) -> tuple[str, ...]:
    """Return the prefixes of paths that are of no trial: the system, libraries, caches and downloads, unless ``directory`` is there."""
    downloads = (os.environ.get(name) or default for name, default in _DOWNLOADS.items())
    prefixes = {
        os.path.realpath(os.path.expanduser(path)) + os.sep  # noqa: PTH111 - it may be empty
        for path in (sys.prefix, sys.base_prefix, *downloads)
        if path
    }
    scratch = os.path.realpath(tempfile.gettempdir()) + "/sweeper-"
    return (
        scratch,
        _PACKAGE,
        *_SYSTEM,
        *(p for p in sorted(prefixes) if not f"{directory}/".startswith(p)),
    )


def roots_of(target: str) -> list[str]:
    """Return the directories that trials of a study work in: the current one, and that of its file."""
    file = Path(target)
    here = Path.cwd()
    directories = [here, *([file.resolve().parent] if file.is_file() else [])]
    return list(dict.fromkeys(map(os.path.realpath, directories)))
