"""Recorder of the files that a trial's process reads and writes.

Python announces each ``open``, ``os.rename`` and ``sqlite3.connect`` as an audit event. TensorFlow and HDF5 open
files in C++, so the few public functions that name such a file are wrapped. ``os.path.exists`` and its relatives
are wrapped because a file that is only looked for can decide what a factory does, and ``open`` because no event
announces that a file is closed: what was written is compared with what is read again, which another trial may have
changed.

The recorder is installed once in a process, before the study is imported, and inherited by the processes that
are forked from it. An audit hook cannot be removed, so it looks at a flag first. Only the first use of each kind is
recorded for a path, and at most `MOST` paths, so that a loop that opens a file for each batch pays for a look-up.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.files.uses import DATED, DESCRIPTIONS, FileUse, content_digest
from sweeper.inspection.sources import is_users, outward

MOST = 400
"""Maximum number of recorded paths."""

_LOOKING = ("genericpath.py", "pathlib.py", "genericpath>", "posixpath>", "os>")
_CODE = (".py", ".pyc", ".pyi", ".so")
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/run/", "/var/lib/")
_CACHES = ("fontconfig", "matplotlib", "sweeper", "pip", "uv")
"""Directories of libraries below the user's cache and configuration directories."""

_PACKAGE = str(Path(__file__).parents[1]) + os.sep

READS, WRITES, ASKS = 1, 2, 4
"""Kinds of use: the content is read; it is created or changed; the caller looks whether the file exists."""

_NEW = FileUse("")


class FileRecorder:
    """Record of the files outside of the trial's own directories that this process uses."""

    def __init__(self) -> None:
        self.active = False
        self._own: tuple[str, ...] = ()
        self._by_path: dict[str, FileUse] = {}
        # By the name that the caller wrote, so that most uses resolve no path; None: not recorded.
        self._by_name: dict[Any, FileUse | None] = {}
        self._mapped: set[tuple[int, ...]] = set()
        self._inside = threading.local()
        self._snapshots: dict[str, tuple[str, set[str], list[None]]] = {}

    def begin(self, own: Iterable[str | Path] = ()) -> None:
        """Begin to record, except for the trial's own directories, whose files are nobody else's."""
        self._own = tuple(os.path.realpath(each) + os.sep for each in own)
        for path in [path for path in self._by_path if path.startswith(self._own)]:
            del self._by_path[path]
        self.forget_names()
        self.active = True

    def stop(self) -> None:
        """Stop recording."""
        self.active = False

    def uses(self, *, ended: bool = False) -> tuple[FileUse, ...]:
        """Return the uses so far, with digests of the files as they are now; none unless it is recording.

        Once the trial has ``ended``, the snapshots of ``tf.data`` that it made are there; this ends the record.
        """
        if not self.active:
            return ()
        with self._unrecorded():
            if ended:
                self._look_for_snapshots()
                self.stop()
            found = [_completed(seen, ended=ended) for seen in list(self._by_path.values())]
            return tuple(use for use in found if use is not None)

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        self._inside.on = True
        try:
            yield
        finally:
            self._inside.on = False

    def used(self, name: Any, kinds: int) -> None:
        """Record a use of a file by the name that the caller wrote."""
        seen = self._by_name.get(name, _NEW)
        if seen is None or not kinds & ~seen.done or getattr(self._inside, "on", False):
            return  # the usual case of a loop that opens files
        with self._unrecorded():
            if (seen := self._find(name)) is not None:
                _record(seen, kinds)

    def wrote(self, name: Any) -> FileUse | None:
        """Return the use of a file to which this process has written, by the name that the caller wrote."""
        seen = self._by_name.get(name)
        recording = self.active and not getattr(self._inside, "on", False)
        return seen if recording and seen is not None and seen.wrote else None

    def closed(self, name: Any, mode: str) -> None:
        """Record that a file was closed to which this process has written, now or before.

        Digests are computed here because another trial may write to the file until it is read again. A log
        that is appended to in each step needs none: what another trial appends changes it.
        """
        seen = self.wrote(name)
        if seen is None or Path(seen.path).name in DESCRIPTIONS:
            return
        with self._unrecorded():
            state = _state(seen.path)
            if state is None:
                return
            if not _kinds(mode) & WRITES:
                if seen.left is not None and state != seen.left and state[:2] == seen.left[:2]:
                    _mark_changed(seen)  # while it was read
            elif state[:2] not in self._mapped:
                seen.left = state
                seen.digest = "" if mode.startswith("a") else content_digest(seen.path)

    def locked(self, name: Any) -> None:
        """Record that another process held a file which was to be read or written."""
        with self._unrecorded():
            if (seen := self._find(name)) is not None:
                _mark_changed(seen)

    def mapped(self, descriptor: int) -> None:
        """Record that an open file is mapped into memory, by which it may change after it is closed."""
        with suppress(OSError):
            state = os.fstat(descriptor)
            self._mapped.add((state.st_dev, state.st_ino))

    def renamed(self, source: Any, target: Any, *_: Any, **__: Any) -> None:
        """Record that a file is about to replace another one."""
        self.used(target, WRITES)
        before, after = (self._by_path.get(_resolved(each)) for each in (source, target))
        if after is None or Path(after.path).name in DESCRIPTIONS | DATED:
            return  # its content is that of the files beside it, or is not compared
        if before is not None and before.left is not None:
            after.left, after.digest, before.left = before.left, before.digest, None

    def forget_names(self) -> None:
        """Forget how relative paths were resolved, because the current directory changes."""
        self._by_name.clear()

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
                if (seen := self._find(path)) is not None and (state := _state(path)) is not None:
                    seen.existed, seen.asked, seen.read_at = path in before, True, line
                    seen.read, seen.wrote = path in before, path in new
                    seen.wrote_at = line if seen.wrote else ""
                    seen.size, seen.modified = state[2:]

    def _find(self, name: Any) -> FileUse | None:
        """Return the record of a file, made if necessary; None if its uses are not recorded."""
        if name in self._by_name:
            return self._by_name[name]
        if len(self._by_name) > 8 * MOST:
            # Those of ignored files, which a long training may open without end.
            self._by_name = {each: seen for each, seen in self._by_name.items() if seen}
        # Of a training that opens a file for each batch, not even the path is resolved.
        path = _resolved(name) if len(self._by_path) < MOST else ""
        seen = self._by_path.get(path)
        if seen is None and path and not self._is_nobodys(path):
            seen = self._by_path[path] = FileUse(path, existed=_state(path) is not None)
        self._by_name[name] = seen
        return seen

    def _is_nobodys(self, path: str) -> bool:
        return (
            path.endswith(_CODE)
            or path.startswith((*self._own, *_SYSTEM, *_libraries()))
            or "/__pycache__/" in path
            or Path(path).is_dir()
        )


def _record(seen: FileUse, kinds: int) -> None:
    if kinds & READS and seen.left is not None and seen.left != _state(seen.path):
        # Other content than this process has written, or its state after the same was written again.
        if seen.digest and content_digest(seen.path) == seen.digest:
            seen.left = _state(seen.path)
        else:
            _mark_changed(seen)
    if kinds & (READS | ASKS) and not seen.wrote:
        seen.read_at, seen.asked = seen.read_at or _user(), True
        state = _state(seen.path)
        if kinds & READS and not seen.read and state is not None:
            seen.read, (seen.size, seen.modified) = True, state[2:]
    if kinds & WRITES:
        if seen.read and not seen.wrote:
            seen.read_digest = content_digest(seen.path)  # it is about to change
        seen.wrote, seen.digest, seen.left = True, "", None
        seen.wrote_at = seen.wrote_at or _user()
    # A file that is not there may come to exist, and one that was written may be changed.
    seen.done = ASKS if seen.wrote else seen.done | (kinds if seen.read else kinds & ~READS)


def _mark_changed(seen: FileUse) -> None:
    if not seen.changed:
        seen.changed, seen.read_at = True, _user() or seen.read_at


def _completed(seen: FileUse, *, ended: bool) -> FileUse | None:
    """Return a use with its digests; None if it cannot matter to another trial."""
    state = _state(seen.path)
    if state is None or not (seen.read or seen.wrote or seen.existed):
        return seen if seen.changed else None
    if seen.read and not seen.read_digest and state[2:] == (seen.size, seen.modified):
        seen.read_digest = content_digest(seen.path)
    # Of a file that is still open, the content is known at the end.
    last = ended and seen.wrote and not seen.digest
    return replace(seen, digest=content_digest(seen.path) if last else seen.digest)


RECORDER = FileRecorder()
"""The recorder of this process."""

_INSTALLED: list[str] = []


def install() -> None:
    """Install the audit hook and the wrappers in this process, once; TensorFlow must be imported."""
    if not _INSTALLED:
        _INSTALLED.append("hook")
        # Not first in the hook: `tempfile` opens a file to find its directory, under a lock that this takes too.
        _libraries()
        sys.addaudithook(_hook)
        _watch_python()
        _watch_tensorflow()
        _watch_databases()
    RECORDER.begin()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if RECORDER.active and event in _EVENTS:
        _EVENTS[event](*arguments)


def _opened(name: Any, _mode: Any, flags: Any) -> None:
    if isinstance(name, int) or not isinstance(flags, int):
        return
    kinds = WRITES if flags & (os.O_WRONLY | os.O_RDWR) else 0
    # `keras.callbacks.CSVLogger` looks for the header of a file that it appends to.
    callers = (sys._getframe(n).f_code.co_filename for n in (2, 3))
    if not flags & (os.O_WRONLY | os.O_TRUNC) and not any(
        each.endswith("/csv_logger.py") for each in callers
    ):
        kinds |= READS
    RECORDER.used(name, kinds)


_EVENTS: dict[str, Callable[..., None]] = {
    "open": _opened,
    "os.rename": RECORDER.renamed,
    "os.truncate": lambda path, *_: RECORDER.used(path, WRITES),
    "os.link": lambda _source, target, *_: RECORDER.used(target, WRITES),
    "os.symlink": lambda _source, target, *_: RECORDER.used(target, WRITES),
    "sqlite3.connect": lambda path, *_: RECORDER.used(path, READS | WRITES),
    "mmap.__new__": lambda descriptor, *_: RECORDER.mapped(descriptor),
    "os.chdir": lambda *_: RECORDER.forget_names(),
}


def _watch_python() -> None:
    """Wrap ``open``, to know when a file is closed, and ``os.stat``, by which ``os.path.exists`` looks."""
    stat_file, open_file = os.stat, io.open

    @functools.wraps(stat_file)
    def asked(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if RECORDER.active and isinstance(path, str | os.PathLike) and _decides():
            RECORDER.used(path, ASKS)
        return stat_file(path, *arguments, **options)

    @functools.wraps(open_file)
    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        made = open_file(file, mode, *arguments, **options)
        name = os.fspath(file) if isinstance(file, os.PathLike) else file
        if RECORDER.wrote(name):
            _tell_when_closed(made, name, mode)
        return made

    os.stat = asked
    builtins.open = io.open = opened
    # `shutil` asks these sets what ``os.stat`` can do.
    for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if stat_file in capable:
            capable.add(asked)


def _tell_when_closed(file: Any, name: Any, mode: str) -> None:
    this = weakref.ref(file)  # the file must still be closed when the last reference to it is gone

    def close() -> None:
        held = this()
        if held is not None and not held.closed:
            type(held).close(held)
            RECORDER.closed(name, mode)

    file.close = close


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

    used, files = RECORDER.used, file_io.FileIO
    _observe(files, "__init__", lambda _file, name, mode="r", *_: used(_text(name), _kinds(mode)))
    _observe(files, "close", lambda file: _at_close(_text(file.name), file.mode))
    for module, exists, rename in (
        (file_io, "file_exists_v2", "rename_v2"),
        (tf.io.gfile, "exists", "rename"),
    ):
        _observe(module, exists, lambda path, *_: used(_text(path), ASKS))
        _observe(module, rename, lambda a, b, *_, **__: RECORDER.renamed(_text(a), _text(b)))
    reader, dataset = (py_checkpoint_reader, "NewCheckpointReader"), tf.data.Dataset
    _observe(*reader, lambda prefix: used(f"{_text(prefix)}.index", READS))
    _observe(functional_saver.MultiDeviceSaver, "save", _saved)
    _observe(dataset, "cache", _cached)
    _observe(dataset, "snapshot", lambda _, path, *__, **___: RECORDER.snapshot(_text(path)))


def _at_close(name: str, mode: str) -> Callable[[], None]:
    return lambda: RECORDER.closed(name, mode)


def _saved(_saver: Any, prefix: Any, *_: Any, **__: Any) -> Callable[[], None]:
    index = f"{_text(prefix)}.index"
    RECORDER.used(index, WRITES)
    return _at_close(index, "w")


def _cached(_dataset: Any, filename: Any = "", *_: Any, **__: Any) -> None:
    """Record a cache file of ``tf.data``: read if it is there, and otherwise written."""
    index = f"{_text(filename)}.index"
    if index != ".index":
        RECORDER.used(index, READS if Path(index).exists() else READS | WRITES)


def _kinds(mode: str) -> int:
    """Return the kinds of use of a file that is opened in a mode such as ``"r+"``."""
    reads = "r" in mode or "+" in mode
    return (READS if reads else 0) | (WRITES if {*"wax+"} & {*mode} else 0)


def _snapshots_in(directory: str) -> set[str]:
    return set(map(str, Path(directory).resolve().glob("*/snapshot.metadata")))


def _watch_databases() -> None:
    """Wrap ``h5py.File`` and ``dbm.open``, which open files in C."""
    import dbm

    import h5py

    def opened(_file: Any, name: Any = "", mode: str = "r", *_: Any, **__: Any) -> None:
        RECORDER.used(_text(name), _kinds(mode.replace("a", "r+")))

    def database(name: Any, flag: str = "r", *_: Any) -> None:
        # Which of them it is depends on the installed library; those that do not exist are left out.
        for suffix in ("", ".db", ".dat", ".dir", ".pag"):
            each = os.fsdecode(name) + suffix
            RECORDER.used(each, (READS if flag != "n" else 0) | (WRITES if flag != "r" else 0))

    _observe(h5py.File, "__init__", opened)
    _observe(h5py.File, "close", lambda f: _at_close(f.filename, f.mode) if f else None)
    _observe(dbm, "open", database)


def _observe(owner: Any, name: str, tell: Callable[..., Callable[[], None] | None]) -> None:
    """Replace ``owner.name`` by a function that calls ``tell`` first, and afterwards what ``tell`` returns."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def observed(*arguments: Any, **options: Any) -> Any:
        after = None
        if RECORDER.active:
            with suppress(TypeError):  # of wrong arguments: the original's own error is clearer
                after = tell(*arguments, **options)
        try:
            returned = original(*arguments, **options)
        except BlockingIOError:  # HDF5's lock of a file
            if RECORDER.active and len(arguments) > 1:
                RECORDER.locked(arguments[1])
            raise
        if after is not None:
            after()
        return returned

    setattr(owner, name, observed)


def _text(name: Any) -> str:
    """Return a file's name, which may be a tensor; empty if it is known only in a graph."""
    if isinstance(name, str | bytes | os.PathLike):
        return os.fsdecode(name)
    numpy = getattr(name, "numpy", None)
    found = numpy() if numpy is not None else b""
    return os.fsdecode(found) if isinstance(found, str | bytes) else ""


def _resolved(name: Any) -> str:
    """Return the absolute path of a file on a disk; empty for other names."""
    text = _text(name)
    remote = "://" in text or text.startswith(("file:", ":memory:"))
    return os.path.realpath(text) if text and not remote else ""


def _state(path: str) -> tuple[int, ...] | None:
    """Return device, inode, size and time (ns) of a regular file, which writing changes; None if there is none."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    regular = stat.S_ISREG(found.st_mode)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if regular else None


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the directories of Python, of installed libraries, and of their caches."""
    home = Path.home()
    caches = (home / top / each for top in (".cache", ".config") for each in _CACHES)
    own = os.path.realpath(tempfile.gettempdir()) + "/sweeper-"
    return (
        own,
        _PACKAGE,
        *(os.path.realpath(str(each)) + os.sep for each in (sys.prefix, sys.base_prefix, *caches)),
    )


def _user() -> str:
    """Return the user's line that this is called for, or else the class of Keras's callback."""
    callback = ""
    for frame in outward(sys._getframe(2)):
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            continue
        if is_users(file):
            return f"`{frame.f_code.co_name}` {Path(file).name}:{frame.f_lineno}"
        if "/keras/src/callbacks/" in file:
            callback = frame.f_code.co_qualname.partition(".")[0]
    return "" if callback in {"", "CallbackList"} else f"keras.callbacks.{callback}"
