"""Recorder of the files that a trial's process reads and writes.

Python announces each ``open``, ``os.rename`` and ``sqlite3.connect`` as an audit event. ``os.stat`` is wrapped because
a file that is only looked for can decide what a factory does, and ``open`` because no event announces that a file is
closed: what was written is compared with what is read again, which another trial may have changed. Other writers
are found by their effect, by a walk before the trial's factories and another one at its end; HDF5 and three
functions of TensorFlow are wrapped for the line that a message names.

The recorder is installed once in a process, before the study is imported, and inherited by the processes that
are forked from it. An audit hook cannot be removed, so it looks at a flag first. Only the first use of each kind is
recorded for a path, and at most `MOST` paths, so that a loop that opens a file for each batch pays for a look-up.
"""

import builtins
import functools
import io
import itertools
import os
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweeper.files.uses import FileUse
from sweeper.files.walk import CODE, Listing
from sweeper.inspection.sources import is_users, outward
from sweeper.support.contents import content_digest
from sweeper.support.paths import nobodys

MOST = 400
"""Maximum number of recorded paths."""

_MOST_NAMES = 1 << 16
"""Maximum number of names whose paths are kept."""

_MOST_LEFT = 100
"""Maximum number of files that a walk alone finds and that are recorded."""

_LOOKING = ("genericpath.py", "pathlib.py", "genericpath>", "posixpath>", "os>")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_OVERWRITERS = ("/keras/", "/tensorflow/", "/PIL/", _PACKAGE)
"""Libraries that look for each file which they are about to overwrite or truncate."""

READS = 1
WRITES = 2
ASKS = 4
KEEPS = 8
"""Kinds of use: the content is read; it is created or changed; the caller looks whether the file exists; with `WRITES`, the
content is kept when the file is opened."""


class FileRecorder:
    """Record of the files outside of the trial's own directories that this process uses.

    Attributes:
        before: Entries of the directories before the trial's factories ran.
        before_write: Called with the path of a file that is about to be written, and whether it is truncated.
    """

    def __init__(self) -> None:
        self.active = False
        self._own: tuple[str, ...] = ()
        self._by_path: dict[str, FileUse] = {}
        # By the name that the caller wrote, so that most uses resolve no path.
        self.find = functools.lru_cache(_MOST_NAMES)(self._find_or_make)
        self._inside = threading.local()
        self.before_write: Callable[[str, bool], None] | None = None
        self._roots: tuple[str, ...] = ()
        self._outputs: tuple[str, ...] = ()
        self.before = Listing()
        self._beside: set[str] = set()

    def begin(self, own: Iterable[str | Path] = ()) -> None:
        """Start to record, except for the trial's own directories, which no other trial uses."""
        self._own = tuple(os.path.realpath(directory) + os.sep for directory in own)
        self._by_path = {
            path: use for path, use in self._by_path.items() if not path.startswith(self._own)
        }
        self.find.cache_clear()
        self.active = True

    def look(self, roots: Iterable[str], own: Iterable[str] = ()) -> None:
        """Remember what is in the directories ``roots``, and below them, except in ``own``: it is input."""
        with self.unrecorded():
            self._outputs = tuple(os.path.realpath(directory) + os.sep for directory in own)
            self._roots = tuple(roots)
            self.before = Listing()
            self.before.add(self._roots, own=self._outputs)

    def uses(self, *, ended: bool = False) -> tuple[FileUse, ...]:
        """Return the uses so far that can matter to another trial; none unless it is recording.

        Once the trial has ``ended``, what it left is looked for, and so is the content of files that were not
        closed; this ends the record.
        """
        if not self.active:
            return ()
        with self.unrecorded():
            if ended:
                self._look_again()
                self.active = False
            uses = [use for use in list(self._by_path.values()) if _matters(use)]
            for use in uses if ended else ():
                if use.wrote and not use.digest:
                    use.digest = content_digest(use.path)
            return tuple(uses)

    def _look_again(self) -> None:
        """Record the files that are new or have changed since `look`, without a recorded write."""
        if not self._roots:
            return
        after = Listing()
        after.add(self._roots, own=self._outputs)
        after.add(self._beside - after.listed, own=self._outputs, deep=False)
        new = list(self.before.new_in(after))
        paths = [path for path in (*new, *self.before.changed_in(after)) if after.states[path]]
        for path in paths[:_MOST_LEFT]:
            use = self._by_path.get(path)
            if path.endswith(CODE) or (use is not None and use.wrote):
                continue
            use = self._by_path.setdefault(path, FileUse(path, existed=path in self.before.states))
            use.left = True

    @property
    def records(self) -> bool:
        """Return whether uses of files by this thread are recorded now."""
        return self.active and not getattr(self._inside, "on", False)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Context manager within which this thread's uses are not recorded."""
        nested = getattr(self._inside, "on", False)
        self._inside.on = True
        try:
            yield
        finally:
            self._inside.on = nested

    def used(self, name: Any, kinds: int) -> None:
        """Record a use of a file by the name that the caller wrote."""
        if self.before_write is not None and kinds & WRITES:
            self.before_write(_resolved(name), kinds == WRITES)
        use = self.find(name)
        if use is None or not kinds & ~use.done:
            return  # the usual case of a loop that opens files
        caller = "" if not kinds & (READS | ASKS) else _caller()
        if caller.endswith("/csv_logger.py"):
            kinds &= ~READS  # it looks for the header of a file that it appends to
        if kinds != ASKS or not any(library in caller for library in _OVERWRITERS):
            # A digest opens the file, which must not count as a use.
            with self.unrecorded():
                _record(use, kinds)

    def closed(self, name: Any, mode: str) -> None:
        """Record that a file was closed to which this process has written.

        Digests are computed here because another trial may write to the file until it is read again. A log
        that is appended to in each step needs none: what another trial appends changes it. A file that was
        opened to be updated may be mapped into memory, by which it changes after it is closed.
        """
        use = self.find(name)
        if use is not None and use.wrote and not {*mode} & {*"r+"}:
            with self.unrecorded():
                use.closed = _state(use.path)
                use.digest = "" if "a" in mode else content_digest(use.path)

    def renamed(self, source: Any, target: Any, *_: Any, **__: Any) -> None:
        """Record that a file is about to replace another one."""
        self.used(target, WRITES)
        source_use, target_use = (self._by_path.get(_resolved(name)) for name in (source, target))
        if source_use is None or not source_use.closed or target_use is None:
            return
        target_use.closed = source_use.closed
        target_use.digest = source_use.digest
        source_use.closed = None

    def _find_or_make(self, name: Any) -> FileUse | None:
        """Return the record of a file; None if its uses are not recorded."""
        if len(self._by_path) >= MOST:
            return None  # of a training that opens a file for each batch, not even the path is resolved
        with self.unrecorded():
            path = _resolved(name)
            if path and path not in self._by_path and not self._is_nobodys(path):
                self._by_path[path] = FileUse(path)
                self._look_beside(path)
            return self._by_path.get(path)

    def _look_beside(self, path: str) -> None:
        """Remember what is in the directory of a file outside of the roots, once."""
        directory = os.path.dirname(path)  # noqa: PTH120 - for each file
        in_roots = f"{directory}/".startswith(tuple(f"{root}/" for root in self._roots))
        if not self._roots or in_roots or directory in self._beside:
            return
        self._beside.add(directory)
        if f"{directory}/" != os.path.realpath(tempfile.gettempdir()) + os.sep:
            self.before.add([directory], own=self._outputs, deep=False)

    def _is_nobodys(self, path: str) -> bool:
        return (
            path.endswith(CODE)
            or path.startswith((*self._own, *nobodys(str(Path.cwd()))))
            or "/__pycache__/" in path
            or Path(path).is_dir()
        )


def _record(use: FileUse, kinds: int) -> None:
    state = _state(use.path)
    if not (use.asked or use.wrote):
        use.existed = state is not None
    if kinds & READS and use.closed is not None and use.closed != state:
        # Other content than this process has written, or its state after the same was written again.
        if use.digest and content_digest(use.path) == use.digest:
            use.closed = state
        elif not use.changed:
            use.changed = True
            use.read_at = _user() or use.read_at
    if kinds & (READS | ASKS) and not use.wrote:
        use.read_at = use.read_at or _user()
        use.asked = True
        if kinds & READS and not use.read_digest and state is not None:
            use.existed = True
            use.read_digest = content_digest(use.path)
    if kinds & WRITES:
        use.appends = bool(kinds & KEEPS) and (use.appends or not use.wrote)
        use.wrote = True
        use.digest = ""
        use.closed = None
        use.wrote_at = use.wrote_at or _user()
    # A file that is not there may come to exist, and one that was written may be changed.
    use.done = ASKS if use.wrote else use.done | (kinds if use.read_digest else kinds & ~READS)


def _matters(use: FileUse) -> bool:
    used = (use.asked and use.existed) or use.wrote or use.left or bool(use.read_digest)
    return use.changed or (used and _state(use.path) is not None)


RECORDER = FileRecorder()
"""The recorder of this process."""


def install() -> None:
    """Install the audit hook and the wrappers in this process, once, and start to record."""
    _watch()
    RECORDER.begin()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and RECORDER.records:
        _EVENTS[event](*arguments)


def _opened(name: Any, _mode: Any, flags: Any) -> None:
    if isinstance(flags, int) and not isinstance(name, int):
        kinds = WRITES if flags & (os.O_WRONLY | os.O_RDWR) else 0
        if kinds and not flags & os.O_TRUNC:
            kinds |= KEEPS
        RECORDER.used(name, kinds if flags & (os.O_WRONLY | os.O_TRUNC) else kinds | READS)


_EVENTS: dict[str, Callable[..., None]] = {
    "open": _opened,
    "os.rename": RECORDER.renamed,
    "os.truncate": lambda path, *_: RECORDER.used(path, WRITES | KEEPS),
    **dict.fromkeys(("os.link", "os.symlink"), lambda _, to, *__: RECORDER.used(to, WRITES)),
    "sqlite3.connect": lambda path, *_: RECORDER.used(path, READS | WRITES | KEEPS),
    "os.chdir": lambda *_: RECORDER.find.cache_clear(),  # which has relative names
}


@functools.cache
def _watch() -> None:
    """Install the audit hook, and wrap the functions that no event announces; TensorFlow must be imported."""
    import h5py
    import tensorflow as tf
    from tensorflow.python.lib.io import file_io

    def looked_for(path: Any, *_: Any, **__: Any) -> None:
        RECORDER.used(_text(path), ASKS)

    def opened(file: Any, name: Any = "", mode: str = "r", *_: Any, **__: Any) -> None:
        reads = {*mode} & {*"r+"} or (mode == "a" and isinstance(file, h5py.File))
        kinds = (READS if reads else 0) | (WRITES if {*mode} & {*"wax+"} else 0)
        RECORDER.used(_text(name), kinds if {*mode} & {*"wx"} else kinds | KEEPS)

    # Not first in the hook: `tempfile` opens a file to find its directory, under a lock that this takes too.
    tempfile.gettempdir()
    sys.addaudithook(_hook)
    _observe(io, "open", _opening)
    builtins.open = io.open
    _observe(os, "stat", looked_for)
    # `shutil` looks in these sets for what ``os.stat`` can do.
    for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        capable.add(os.stat)
    # The private base of `tf.io.gfile.GFile`, which TensorFlow itself uses.
    _observe(file_io.FileIO, "__init__", opened)
    _observe(file_io.FileIO, "close", lambda file: _at_close(_text(file.name), file.mode))
    for module, exists in ((file_io, "file_exists_v2"), (tf.io.gfile, "exists")):
        _observe(module, exists, looked_for)
    _observe(tf.data.Dataset, "cache", _cached)
    _observe(h5py.File, "__init__", opened)
    _observe(
        h5py.File,
        "close",
        lambda f: _at_close(f.filename, f.mode.replace("r+", "w")) if f else None,
    )


def _observe(owner: Any, name: str, observer: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by a function that calls ``observer`` before it, and what that returns after it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def observed(*arguments: Any, **options: Any) -> Any:
        after = None
        if RECORDER.records:
            try:
                after = observer(*arguments, **options)
            except TypeError:
                original(*arguments, **options)  # of wrong arguments, its own error is clearer
                raise
        returned = original(*arguments, **options)
        if after is not None:
            after(returned)
        return returned

    setattr(owner, name, observed)


def _opening(file: Any, mode: str = "r", *_: Any, **__: Any) -> Callable[[Any], None]:
    """Return a function that lets an open file report its closing, if this process has written to it."""
    name = os.fspath(file) if isinstance(file, os.PathLike) else file

    def watch(stream: Any) -> None:
        use = RECORDER.find(name)
        if use is None or not use.wrote:
            return
        # The file must still be closed when its last other reference is gone.
        reference = weakref.ref(stream)

        def close() -> None:
            open_stream = reference()
            if open_stream is not None and not open_stream.closed:
                type(open_stream).close(open_stream)
                RECORDER.closed(name, mode)

        stream.close = close

    return watch


def _at_close(name: str, mode: str) -> Callable[[Any], None]:
    return lambda _: RECORDER.closed(name, mode)


def _cached(_dataset: Any, filename: Any = "", *_: Any, **__: Any) -> None:
    """Record a cache file of ``tf.data``: read if it is there, and otherwise written."""
    index = f"{_text(filename)}.index"
    if index != ".index":
        RECORDER.used(index, READS if Path(index).exists() else READS | WRITES | KEEPS)


def _text(name: Any) -> str:
    """Return a file's name, which may be a tensor; empty if it is known only in a graph."""
    if isinstance(name, str | bytes | os.PathLike):
        return os.fsdecode(name)
    numpy = getattr(name, "numpy", None)
    value = numpy() if numpy is not None else b""
    return os.fsdecode(value) if isinstance(value, str | bytes) else ""


def _resolved(name: Any) -> str:
    """Return the absolute path of a file on a disk; empty for other names."""
    text = _text(name)
    remote = "://" in text or text.startswith(("file:", ":memory:"))
    return os.path.realpath(text) if text and not remote else ""


def _state(path: str) -> tuple[int, ...] | None:
    """Return device, inode, size and time (ns) of a regular file, which writing changes; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - for each file that is opened
    except (OSError, ValueError):
        # There is no such file, or its name has a NUL.
        return None
    regular = stat.S_ISREG(status.st_mode)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) if regular else None


def _caller() -> str:
    """Return the file of the code that opens or looks for a file, outside of Python's functions for paths."""
    frames = outward(sys._getframe())
    for frame in itertools.dropwhile(lambda inner: inner.f_code.co_filename == __file__, frames):
        # Keras's `file_utils.File` only calls ``open``.
        if not frame.f_code.co_filename.endswith(_LOOKING) and frame.f_code.co_name != "File":
            return frame.f_code.co_filename
    return ""


def _user() -> str:
    """Return the user's line that this is called for, or else the class of Keras's callback."""
    callback = ""
    # Above this function and `_record`.
    for frame in outward(sys._getframe(2)):
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            continue
        if is_users(file):
            return f"`{frame.f_code.co_name}` {Path(file).name}:{frame.f_lineno}"
        if "/keras/src/callbacks/" in file:
            callback = frame.f_code.co_qualname.partition(".")[0]
    return "" if callback in {"", "CallbackList"} else f"keras.callbacks.{callback}"
