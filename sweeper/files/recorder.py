"""Recorder of the files that a trial's process reads and writes.

Python announces each ``open``, ``os.rename``, ``os.remove`` and ``sqlite3.connect`` as an audit event.
TensorFlow and HDF5 open files in C++, so the few public functions that name such a file are wrapped: caches,
snapshots and saved datasets of ``tf.data``, ``tf.io.gfile``, TensorFlow's checkpoints, and ``h5py.File``.
``os.path.exists`` and its relatives are wrapped because a file that is only looked for can decide what a factory
does.

The recorder is installed once in a process, before the study is imported, and inherited by the processes that
are forked from it. An audit hook cannot be removed, so it looks at a flag first. Only the first use of each kind is
recorded for a path, and at most `MOST` paths, so that a loop that opens a file for each batch pays for a look-up.
Digests are computed when the uses are reported.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.files.uses import FileUse, content_digest
from sweeper.inspection.sources import is_users, outward

MOST = 400
"""Maximum number of recorded paths."""

_WRITES = os.O_WRONLY | os.O_RDWR
_LOOKING = ("genericpath.py", "pathlib.py", "genericpath>", "posixpath>", "os>")
_CODE = (".py", ".pyc", ".pyi", ".so")
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/run/", "/var/lib/")
_CACHES = ("fontconfig", "matplotlib", "sweeper", "pip", "uv")
"""Directories of libraries below the user's cache and configuration directories."""

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


READS, WRITES, ASKS = 1, 2, 4
"""Kinds of use: the content is read; it is created or changed; the caller looks whether the file exists."""

_ALL = READS | WRITES | ASKS


class FileRecorder:
    """Record of the files outside of the trial's own directories that this process uses.

    Attributes:
        left_out: Number of uses of further files after `MOST` had been recorded.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._active = False
        self._own: tuple[str, ...] = ()
        self._seen: dict[str, FileUse] = {}
        self._recorded: dict[Any, int] = {}  # kinds of use by the name that the caller wrote
        self._inside = threading.local()
        self._snapshots: dict[str, tuple[str, set[str], list[None]]] = {}

    def begin(self, own: Iterable[str | Path] = ()) -> None:
        """Begin to record, except for the trial's own directories, whose files are nobody else's."""
        self._own = tuple(os.path.realpath(each) + os.sep for each in own)
        for path in [path for path in self._seen if path.startswith(self._own)]:
            del self._seen[path]
        self.forget_names()
        self._active = True

    def stop(self) -> None:
        """Stop recording."""
        self._active = False

    def uses(self, *, ended: bool = False) -> tuple[FileUse, ...]:
        """Return the uses so far, with digests of the files as they are now.

        Args:
            ended: The trial has ended, so that the snapshots of ``tf.data`` that it made are there.
        """
        self._inside.on = True
        try:
            if ended:
                self._look_for_snapshots()
            return tuple(use for seen in list(self._seen.values()) if (use := _completed(seen)))
        finally:
            self._inside.on = False

    def used(self, name: Any, kinds: int) -> None:
        """Record a use of a file by the name that the caller wrote."""
        if not kinds & ~self._recorded.get(name, 0) or getattr(self._inside, "on", False):
            return  # the usual case of a loop that opens files
        self._inside.on = True
        try:
            self._record(name, kinds)
        finally:
            self._inside.on = False

    def removed(self, name: Any) -> None:
        """Record that a file was removed or renamed."""
        path = _resolved(name)
        known = None if path is None else self._seen.get(path)
        if known is not None and not known.existed:
            known.gone = True
            self._recorded.pop(name, None)

    def forget_names(self) -> None:
        """Forget how relative paths were resolved, because the current directory changes."""
        self._recorded.clear()

    def snapshot(self, directory: str) -> None:
        """Record that a dataset has snapshots in a directory, which are read or made while it is iterated."""
        made = self._snapshots.setdefault(directory, (_user(), _snapshots_in(directory), []))
        made[2].append(None)

    def _look_for_snapshots(self) -> None:
        # The name of a snapshot is a digest of the dataset's graph, without values of variables. If fewer
        # were made than there are datasets, one of those that were there was read.
        for directory, (line, before, datasets) in self._snapshots.items():
            new = _snapshots_in(directory) - before
            for path in new if len(new) >= len(datasets) else new | before:
                seen, state = self._find(path), _stat(path)
                if seen is not None and state is not None:
                    seen.existed, seen.asked, seen.read_at = path in before, True, line
                    seen.read, seen.wrote = path in before, path in new
                    seen.wrote_at = line if seen.wrote else ""
                    seen.size, seen.modified = state.st_size, state.st_mtime_ns

    def _record(self, name: Any, kinds: int) -> None:
        if len(self._recorded) > 8 * MOST:
            self.forget_names()  # those of ignored files, which a long training may open without end
        seen = self._find(name)
        if seen is None:
            self._recorded[name] = _ALL
            return
        if kinds & (READS | ASKS) and not seen.wrote:
            seen.read_at = seen.read_at or _user()
            seen.asked = True
            state = _stat(seen.path)
            if kinds & READS and not seen.read and state is not None:
                seen.read, seen.size, seen.modified = True, state.st_size, state.st_mtime_ns
        if kinds & WRITES:
            if seen.read and not seen.wrote:
                seen.read_digest = content_digest(seen.path)  # it is about to change
            seen.wrote, seen.gone = True, False
            seen.wrote_at = seen.wrote_at or _user()
        done = (
            _ALL if seen.wrote else kinds if seen.read else kinds & ~READS
        )  # it may come to exist
        self._recorded[name] = self._recorded.get(name, 0) | done

    def _find(self, name: Any) -> FileUse | None:
        """Return the record of a file, made if necessary; None if its uses are not recorded."""
        if len(self._seen) >= MOST:
            # Of a training that opens a file for each batch, not even the path is resolved.
            self.left_out += 1
            return None
        path = _resolved(name)
        if path is None or (path not in self._seen and self._is_nobodys(path)):
            return None
        return self._seen.setdefault(path, FileUse(path, existed=_stat(path) is not None))

    def _is_nobodys(self, path: str) -> bool:
        return (
            path.endswith(_CODE)
            or path.startswith((*self._own, *_SYSTEM, *_libraries()))
            or "/__pycache__/" in path
            or Path(path).is_dir()
        )


def _completed(seen: FileUse) -> FileUse | None:
    """Return a use with the digests of the file as it is now; None if it cannot matter to another trial."""
    state = _stat(seen.path)
    if state is None or seen.gone or not (seen.read or seen.wrote or seen.existed):
        return None
    unchanged = (state.st_size, state.st_mtime_ns) == (seen.size, seen.modified)
    if seen.read and not seen.read_digest and unchanged:
        seen.read_digest = content_digest(seen.path)
    return replace(seen, digest=content_digest(seen.path) if seen.wrote else "")


RECORDER = FileRecorder()
"""The recorder of this process."""

_INSTALLED: list[str] = []


def install() -> None:
    """Install the audit hook and the wrappers in this process, once; TensorFlow must be imported."""
    if not _INSTALLED:
        _INSTALLED.append("hook")
        sys.addaudithook(_hook)
        _watch_lookups()
        _watch_tensorflow()
        _watch_databases()
    RECORDER.begin()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not RECORDER._active:
        return
    if event == "open":
        name, _, flags = arguments
        if isinstance(name, int) or not isinstance(flags, int):
            return
        reads = not flags & (os.O_WRONLY | os.O_TRUNC)
        writes = WRITES if flags & (os.O_WRONLY | os.O_RDWR) else 0
        if reads and sys._getframe(1).f_code.co_filename.endswith("/csv_logger.py"):
            reads = False  # `keras.callbacks.CSVLogger` looks for the header of a file that it appends to
        RECORDER.used(name, writes | (READS if reads else 0))
    elif event in _EVENTS:
        _EVENTS[event](*arguments)


def _renamed(source: Any, target: Any, *_: Any, **__: Any) -> None:
    RECORDER.used(target, WRITES)
    RECORDER.removed(source)


_EVENTS: dict[str, Callable[..., None]] = {
    "os.rename": _renamed,
    "os.remove": lambda path, *_: RECORDER.removed(path),
    "os.truncate": lambda path, *_: RECORDER.used(path, WRITES),
    "os.link": lambda _source, target, *_: RECORDER.used(target, WRITES),
    "os.symlink": lambda _source, target, *_: RECORDER.used(target, WRITES),
    "sqlite3.connect": lambda path, *_: RECORDER.used(path, READS | WRITES),
    "os.chdir": lambda *_: RECORDER.forget_names(),
}


def _watch_lookups() -> None:
    """Wrap ``os.stat``, by which ``os.path.exists`` and ``Path.is_file`` look; it raises no audit event."""
    original = os.stat

    @functools.wraps(original)
    def asked(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if RECORDER._active and isinstance(path, str | os.PathLike) and _decides():
            RECORDER.used(path, ASKS)
        return original(path, *arguments, **options)

    os.stat = asked
    # `shutil` asks these sets what ``os.stat`` can do.
    for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in capable:
            capable.add(asked)


def _decides() -> bool:
    """Return whether a look-up may decide what a factory does; not one of Keras, TensorFlow, Pillow or sweeper.

    Keras and Pillow look for each file that they are about to overwrite, and sweeper for one that it truncates.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_LOOKING):
        frame = frame.f_back
    libraries = ("/keras/", "/tensorflow/", "/PIL/", _PACKAGE)
    return not any(library in frame.f_code.co_filename for library in libraries)


def _watch_tensorflow() -> None:
    """Wrap the functions of TensorFlow that name a file which TensorFlow opens in C++."""
    import tensorflow as tf
    from tensorflow.python.checkpoint import functional_saver
    from tensorflow.python.lib.io import file_io
    from tensorflow.python.training import py_checkpoint_reader

    _before(file_io.FileIO, "__init__", _opened)
    for module in (file_io, tf.io.gfile):
        for name in ("file_exists_v2", "exists"):
            _before(module, name, lambda path, *_: RECORDER.used(_text(path), ASKS))
        for name in ("rename_v2", "rename"):
            _before(module, name, lambda a, b, *_, **__: _renamed(_text(a), _text(b)))
    _before(
        py_checkpoint_reader,
        "NewCheckpointReader",
        lambda prefix: RECORDER.used(f"{_text(prefix)}.index", READS),
    )
    _before(
        functional_saver.MultiDeviceSaver,
        "save",
        lambda _saver, prefix, *_, **__: RECORDER.used(f"{_text(prefix)}.index", WRITES),
    )
    _before(tf.data.Dataset, "cache", _cached)
    _before(
        tf.data.Dataset, "snapshot", lambda _data, path, *_, **__: RECORDER.snapshot(_text(path))
    )


def _opened(_file: Any, name: Any, mode: str = "r", *_: Any, **__: Any) -> None:
    """Record the opening of a file by ``tf.io.gfile``."""
    RECORDER.used(_text(name), _kinds(mode))


def _kinds(mode: str) -> int:
    """Return the kinds of use of a file that is opened in a mode such as ``"r+"``."""
    reads = "r" in mode or "+" in mode
    return (READS if reads else 0) | (WRITES if {*"wax+"} & {*mode} else 0)


def _cached(_dataset: Any, filename: Any = "", *_: Any, **__: Any) -> None:
    """Record a cache file of ``tf.data``: read if it is there, and otherwise written."""
    index = f"{_text(filename)}.index"
    if index != ".index":
        RECORDER.used(index, READS if Path(index).exists() else READS | WRITES)


def _snapshots_in(directory: str) -> set[str]:
    return set(map(str, Path(directory).resolve().glob("*/snapshot.metadata")))


def _watch_databases() -> None:
    """Wrap ``h5py.File`` and ``dbm.open``, which open files in C."""
    import dbm

    import h5py

    def opened(_file: Any, name: Any = "", mode: str = "r", *_: Any, **__: Any) -> None:
        if isinstance(name, str | bytes | os.PathLike):
            RECORDER.used(os.fsdecode(name), _kinds(mode.replace("a", "r+")))

    def database(name: Any, flag: str = "r", *_: Any) -> None:
        # Which of them it is depends on the installed library; those that do not exist are left out.
        for suffix in ("", ".db", ".dat", ".dir", ".pag"):
            each = os.fsdecode(name) + suffix
            RECORDER.used(each, (READS if flag != "n" else 0) | (WRITES if flag != "r" else 0))

    _before(h5py.File, "__init__", opened)
    _before(dbm, "open", database)


def _before(owner: Any, name: str, tell: Callable[..., None]) -> None:
    """Replace ``owner.name`` by a function that calls ``tell`` with the same arguments first."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def observed(*arguments: Any, **options: Any) -> Any:
        if RECORDER._active:
            try:
                tell(*arguments, **options)
            except TypeError:
                return original(*arguments, **options)  # wrong arguments: its own error is clearer
        return original(*arguments, **options)

    setattr(owner, name, observed)


def _text(name: Any) -> str:
    """Return a file's name, which may be a tensor; empty if it is known only in a graph."""
    if isinstance(name, str | bytes | os.PathLike):
        return os.fsdecode(name)
    numpy = getattr(name, "numpy", None)
    found = numpy() if numpy is not None else b""
    return os.fsdecode(found) if isinstance(found, str | bytes) else ""


def _resolved(name: Any) -> str | None:
    """Return the absolute path of a file on a disk; None for other names."""
    try:
        text = os.fsdecode(name)
    except TypeError:
        return None
    if not text or "://" in text or text.startswith(("file:", ":memory:")):
        return None
    return os.path.realpath(text)


def _stat(path: str) -> os.stat_result | None:
    """Return the state of a regular file; None if there is none."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the directories of Python, of installed libraries, and of their caches."""
    home = Path.home()
    directories = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    directories |= {str(home / top / each) for top in (".cache", ".config") for each in _CACHES}
    directories |= {
        str(home / ".keras" / "keras.json"),
        tempfile.gettempdir() + "/sweeper-",
        _PACKAGE,
    }
    return tuple(
        os.path.realpath(each) + ("" if each.endswith("-") else os.sep) for each in directories
    )


_is_users = functools.lru_cache(maxsize=4096)(is_users)


def _user() -> str:
    """Return the user's line that this is called for, or else the class of Keras's callback."""
    callback = ""
    for frame in outward(sys._getframe(2)):
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            continue
        if _is_users(file):
            return f"`{frame.f_code.co_name}` {Path(file).name}:{frame.f_lineno}"
        if "/keras/src/callbacks/" in file:
            callback = frame.f_code.co_qualname.partition(".")[0]
    return "" if callback in {"", "CallbackList"} else f"keras.callbacks.{callback}"
