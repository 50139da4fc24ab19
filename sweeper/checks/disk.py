"""Disk of a check: what its trials change outside of their directories is undone, also after a SIGKILL.

The processes of the check name what they are about to change in a journal (`sweeper.run.trial.keeping`). What C++ or
other programs write is found by walks through the directories that the study works in, and may be of a process that is
no trial. It is set aside by renaming, and removed at the end only if another training made it again: a file of the
same path, or of the same size and the same name but for its numbers, or the same content of a file that was there. Of
those files, the newest of the small ones are copied first.

If another process writes in these directories meanwhile, its files are not touched: then what nobody announced is left, and
named.

Everything that is set aside is in ``.sweeper-aside`` in the directory that it is from, and the next check or run there puts
it back if this one is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import os
import re
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sweeper.checks.other_processes import at_work, written_bytes
from sweeper.checks.undoing import Undone, free_name, undo
from sweeper.files.walk import ASIDE, CODE, MOST_ENTRIES, Listing, State
from sweeper.run.launch.server_process import LOCKS
from sweeper.run.trial.keeping import (
    CHANGES,
    COPY,
    OWNER,
    PRIVATE,
    PROCESSES,
    ROOTS,
    read_changes,
)

_IMPORT = "changes-of-import"
_BEFORE = "before.json"
_FOUND = "found"
_COPIES = "copies"
_ALIVE = "alive"
_OWN = frozenset({CHANGES, OWNER, PROCESSES, _IMPORT, _BEFORE, _FOUND, _COPIES, _ALIVE})

_MOST_COPIES = 2_000
_MOST_BYTES = 64 * 2**20
"""Number and size (bytes) of the files that are copied first."""

_BEAT = 1.0
"""Seconds between two signs of life."""

_NUMBERS = re.compile(r"[0-9a-fA-F]*[0-9][0-9a-fA-F]*")
"""Parts of a name that differ from one training to the next: a time, a process's id, a random one."""


def put_back(roots: list[str], notify: Callable[[str], None]) -> None:
    """Put back what a check that was killed in one of the directories ``roots`` has set aside.

    A run calls this before it imports the study, because the study might read what a check's trials left.
    """
    if not any(Path(root, ASIDE).exists() for root in roots):
        return
    disk = Disk(roots, notify)
    with contextlib.ExitStack() as stack:
        for root in sorted(roots):
            stack.enter_context(disk._locked(root))
        new = [path for path, _ in disk._recover()]
    if new:
        notify(
            f"{', '.join(_names(new))} appeared while a check ran that was killed, made by its trials or by another "
            "process, and is left; remove it if it is not yours, because a trial may read it"
        )


@dataclass(frozen=True)
class _Found:
    """A file or directory that nobody was seen to make, or a file's other content, set aside as ``kept``."""

    path: str
    kept: Path
    training: int
    changed: bool = False


@dataclass
class Disk:
    """Context manager for the directories ``roots`` of a check; ``notify`` is called with what is put back or waited for.

    Attributes:
        removed: What the trials made and was removed, as names for messages; complete at the end.
        notes: What could not be undone, or not be told apart, a sentence each; complete at the end.
    """

    roots: list[str]
    notify: Callable[[str], None] = lambda _: None
    removed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _undone: Undone = field(default_factory=Undone)
    _found: list[_Found] = field(default_factory=list)
    _training: int = 0
    _written: dict[str, int] = field(default_factory=dict)
    _copies: dict[str, str] = field(default_factory=dict)
    _began: Listing = field(default_factory=Listing)
    _before: Listing = field(default_factory=Listing)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        # The first directory has the journal, so it must be one that can be written to.
        self.roots = sorted(self.roots, key=lambda root: not os.access(root, os.W_OK))
        if not os.access(self.roots[0], os.W_OK):
            apart = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sweeper-aside-"))
            self.roots.insert(0, os.path.realpath(apart))

    @property
    def _aside(self) -> Path:
        return Path(self.roots[0], ASIDE)

    def __enter__(self) -> Self:
        with self._stack as stack:
            for root in sorted(
                self.roots
            ):  # in one order, so that two checks never wait for each other
                stack.enter_context(self._locked(root))
            earlier = self._recover()
            self._aside.mkdir(PRIVATE, exist_ok=True)
            stack.callback(self._end)
            for path, of in earlier:
                self._put_aside(path, of=of)
            self._began = self._before = self._walk()
            self._copy_first()
            self._store()
            stack.enter_context(self._alive())
            os.environ[ROOTS] = json.dumps(self.roots)
            stack.callback(os.environ.pop, ROOTS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def imported(self) -> None:
        """Take what is there now, the study's import included, for the input of its trials."""
        changes = self._aside / CHANGES
        if changes.exists():
            changes.rename(self._aside / _IMPORT)
        self._before = self._walk()
        self._written = self._written_bytes()
        self._store()
        if not self._before.complete:
            self.notes.append(
                f"the directories of the study have more than {MOST_ENTRIES:,} entries; what trials leave was "
                "looked for among the first ones"
            )

    def left(self) -> set[str]:
        """Return the paths of the files that are new, or others, since `imported` or the last `undo`."""
        paths, kept_paths = set(), set()
        for entry in read_changes(self._aside / CHANGES):
            match entry:
                case {"made": path} | {"linked": path} | {"to": path} if self._is_left(path):
                    paths.add(path)
                case {"kept": path, "under": kept}:
                    kept_paths.add(path)
                    paths |= set() if _alike(path, kept) else {path}
        if self._is_shared():
            return paths
        after = self._walk()
        new = {path for path in self._before.new_in(after) if after.states[path]}
        return paths | new | (set(self._before.changed_in(after)) - kept_paths)

    def _is_left(self, path: str) -> bool:
        """Return whether a file is there under a name that another trial can know."""
        below = path.startswith(tuple(root + os.sep for root in self.roots))
        temporary = Path(os.path.realpath(tempfile.gettempdir()))
        if not below and Path(path).is_relative_to(temporary):
            top = Path(path).relative_to(temporary).parts[0]
            return not top.startswith((tempfile.gettempprefix(), "__")) and Path(path).is_file()
        return Path(path).is_file()

    def undo(self) -> None:
        """Undo what trainings have changed since `imported` or the last `undo`."""
        self._training += 1
        shared = self._is_shared()
        undo(self._aside / CHANGES, self._undone)
        after = self._walk()
        if shared:
            self._before = after
            return
        new = set(self._before.new_in(after))
        for path in sorted(new):
            if str(Path(path).parent) not in new:
                self._put_aside(path)
        self._restore(self._before, after)

    def _is_shared(self) -> bool:
        """Return whether another process has written in these directories since the trials began."""
        if not self._undone.shared:
            process = at_work(self._written, self._written_bytes())
            if process is not None:
                self._undone.shared = True
                self.notes.append(
                    f"another process ({process}) writes in these directories; its files are left alone, and so is what "
                    "trials write by C++ code or other programs. For the whole check, run it when that process has ended"
                )
        return self._undone.shared

    def _written_bytes(self) -> dict[str, int]:
        """Return what other processes at work in the directories have written; see `written_bytes`."""
        processes = self._aside / PROCESSES
        ids = processes.read_text().split() if processes.exists() else ()
        return written_bytes(self.roots, map(int, ids))

    def _put_aside(self, path: str, *, of: str = "") -> None:
        """Set a file or a directory aside; ``of`` is the file of which it is another content."""
        root = next(root for root in self.roots if path.startswith(root + os.sep))
        aside = Path(root, ASIDE)
        if not aside.is_dir():
            aside.mkdir(PRIVATE)
            (aside / OWNER).write_text(self.roots[0])
        self._undone.directories.append(str(aside))
        kept = aside / f"{_FOUND}-{len(self._found)}-{Path(path).name}"
        with (self._aside / _FOUND).open("a") as found:
            found.write(json.dumps([of or path, str(kept), bool(of)]) + "\n")
        self._found.append(_Found(of or path, kept, self._training, changed=bool(of)))
        Path(path).rename(kept)

    def _restore(self, before: Listing, after: Listing) -> None:
        """Give files that nobody was seen to change the content from before; what they have now is set aside."""
        for path, state in before.states.items():
            now, is_there = after.states.get(path), os.path.lexists(path)
            if now == state or path.endswith(CODE) or (now is None and is_there):
                continue
            if not state:
                Path(path).mkdir(parents=True, exist_ok=True)
            elif self._began.states.get(path) == state and self._can_restore(path):
                if is_there and not _alike(path, self._copies[path]):
                    self._put_aside(path, of=path)
                _write_back(self._copies[path], path, state)
                self._began.states[path] = before.states[path] = _state(path)
            else:
                self.notes.append(
                    f"{path} was changed while trials ran, by them or by another process"
                )
                before.states[path] = _state(path)

    def _save_originals(self) -> None:
        """Save the former content of changed files beside them, unless they contain it."""
        for path, copy in self._copies.items():
            if _state(path) != self._began.states[path] and not _begins_with(path, copy):
                beside = free_name(Path(path), "before-check")
                shutil.copy2(copy, beside, follow_symlinks=False)
                self.notes.append(
                    f"{path} was changed while trials ran, by them or by another process; what it was is in {beside}"
                )

    def _can_restore(self, path: str) -> bool:
        return path in self._copies and os.access(Path(path).parent, os.W_OK)

    def _end(self) -> None:
        """Undo everything; if that fails, the next check does it."""
        self.undo()
        undo(self._aside / _IMPORT, self._undone)
        if self._undone.shared:
            self._save_originals()
        else:
            self._restore(self._began, self._walk())
        left = [each for each in self._found if not self._was_made_again(each)]
        for each in self._found:
            if each not in left:
                self._undone.removed += [] if each.changed else [each.path]
                _remove(each.kept)
        self._leave(left)
        self.notes = list(dict.fromkeys([*self.notes, *self._undone.doubts]))
        temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        here = tuple(root + os.sep for root in self.roots)
        named = (
            p for p in self._undone.removed if p.startswith(here) or not p.startswith(temporary)
        )
        gone = [p for p in dict.fromkeys(named) if not os.path.lexists(p)]
        self.removed = _names(gone)
        self._clear(self._undone.directories)

    def _was_made_again(self, found: _Found) -> bool:
        others = [
            f for f in self._found if f.training != found.training and f.changed == found.changed
        ]
        if found.changed:
            others = [f for f in others if f.path == found.path]
            added = self._added(found)
            # A training that was killed and resumed appends to a log more often than another one.
            return any(
                _alike(f.kept, found.kept) or (added and added == self._added(f)) for f in others
            )
        name = _NUMBERS.sub("#", found.path)
        return any(
            f.path == found.path
            or (_NUMBERS.sub("#", f.path) == name and _size(f.kept) == _size(found.kept))
            for f in others
        )

    def _added(self, found: _Found) -> set[bytes]:
        """Return the lines that another content of a file adds to what the file was; empty if it changes that."""
        copy = self._copies.get(found.path)
        if copy is None or not _begins_with(str(found.kept), copy):
            return set()
        return set(found.kept.read_bytes()[Path(copy).stat().st_size :].splitlines())

    def _leave(self, left: Iterable[_Found]) -> None:
        """Put back what may be of another process, and name it."""
        new: list[str] = []
        changed: list[str] = []
        for each in left:
            path = Path(each.path)
            if not os.path.lexists(path):
                each.kept.rename(path)
            elif _alike(path, each.kept):
                each.kept.unlink()
                continue
            else:
                path = free_name(path)
                each.kept.rename(path)
            (changed if each.changed else new).append(str(path))
        if new:
            self.notes.append(
                f"{', '.join(_names(new))} appeared while trials ran, made by them or by another process, and is "
                "left; remove it if it is not yours, because a trial may read it"
            )
        if changed:
            self.notes.append(
                f"a file was changed while trials ran, by them or by another process; its content is what it was, "
                f"and the other one is in {', '.join(_names(changed))}"
            )

    def _recover(self) -> list[tuple[str, str]]:
        """Put back what a check that was killed has set aside; return what is new since it began.

        Of the other content of a file that was there, the second value is that file's path.
        """
        for root in self.roots[1:]:
            with contextlib.suppress(FileNotFoundError):
                owner = Path(root, ASIDE, OWNER).read_text()
                if owner not in self.roots and Path(owner).is_dir():
                    with self._locked(owner):
                        Disk([owner, *self.roots], self.notify)._recover_own()
        return self._recover_own()

    def _recover_own(self) -> list[tuple[str, str]]:
        if not self._aside.is_dir():
            return []
        # The processes of a check that was killed live a little longer, and name what they change then, too.
        signs = [self._aside / name for name in (_ALIVE, CHANGES, _IMPORT, PROCESSES)]
        until = max(sign.stat().st_mtime for sign in (*signs, self._aside) if sign.exists())
        undone = Undone()
        for name in (CHANGES, _IMPORT):
            undo(self._aside / name, undone, until=until)
        found = self._aside / _FOUND
        contents: dict[str, str] = {}
        for line in found.read_text().splitlines() if found.exists() else ():
            path, kept, changed = json.loads(line)
            undone.directories.append(str(Path(kept).parent))
            if os.path.lexists(kept):
                back = free_name(Path(path)) if changed or os.path.lexists(path) else Path(path)
                Path(kept).rename(back)
                contents |= {str(back): path} if changed else {}
        new = self._recover_unseen(undone, until, contents)
        self._clear(undone.directories)
        for what, paths in (("put back", undone.put_back), ("removed", undone.removed)):
            if paths:
                self.notify(f"of a check that was killed, {what}: {', '.join(_names(paths))}")
        for doubt in (*undone.doubts, *self.notes):
            self.notify(f"of a check that was killed: {doubt}")
        self.notes.clear()
        return new

    def _recover_unseen(
        self, undone: Undone, until: float, contents: dict[str, str]
    ) -> list[tuple[str, str]]:
        """Undo what a check that was killed has not seen being changed; return as `_recover` does.

        ``contents`` are other contents by their paths, with the paths of the files.
        """
        before = self._aside / _BEFORE
        if not before.exists():
            return []
        stored = json.loads(before.read_text())
        for path, (copy, *state) in stored["copies"].items():
            if path.endswith(CODE) or _state(path) == tuple(state) or _alike(path, copy):
                continue
            if os.path.lexists(path):
                if os.lstat(path).st_mtime > until + 2 * _BEAT:
                    continue  # the user has written to it since
                other = Path(path).rename(free_name(Path(path)))
                contents[str(other)] = path
            _write_back(copy, path, tuple(state))
            undone.put_back.append(path)
        now = self._walk()
        known = Listing(dict.fromkeys(stored["paths"], ()), set(stored["listed"]))
        new = set(known.new_in(now))
        top = (path for path in sorted(new) if str(Path(path).parent) not in new)
        # What was written after the last sign of life is the user's, such as a run's files since then.
        ours = (path for path in top if path in contents or _newest(path) <= until + 2 * _BEAT)
        return [(path, contents.get(path, "")) for path in ours]

    def _clear(self, directories: Iterable[str]) -> None:
        """Remove the directories of what was set aside, unless one still has something."""
        for aside in {*directories, str(self._aside)}:
            left = (p for p in Path(aside).glob("*") if p.name not in _OWN)
            if any(not p.name.startswith(COPY) and not _is_empty(str(p)) for p in left):
                self.notes.append(f"{aside} still has files that could not be put back")
            else:
                shutil.rmtree(aside, ignore_errors=True)

    def _walk(self) -> Listing:
        listing = Listing()
        listing.add(self.roots)
        return listing

    def _store(self) -> None:
        """Store what is input, for a check that recovers from the death of this one."""
        copies = {path: [copy, *self._began.states[path]] for path, copy in self._copies.items()}
        stored = {
            "copies": copies,
            "paths": list(self._before.states),
            "listed": list(self._before.listed),
        }
        new = self._aside / f"{COPY}{_BEFORE}"
        new.write_text(json.dumps(stored))
        new.replace(self._aside / _BEFORE)

    def _copy_first(self) -> None:
        """Copy the newest of the small files, so that changes that nobody was seen to make can be undone."""
        directory, size = self._aside / _COPIES, 0
        directory.mkdir()
        files = [(state[1], path) for path, state in self._began.states.items() if len(state) > 1]
        for _, path in sorted(files, reverse=True)[:_MOST_COPIES]:
            more = self._began.states[path][0]
            if size + more <= _MOST_BYTES:
                size += more
                copy = directory / str(len(self._copies))
                with contextlib.suppress(OSError):  # it may not be read, or be gone
                    shutil.copy2(path, copy, follow_symlinks=False)
                    self._copies[path] = str(copy)

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """Give signs of life, by which the next check tells what trials wrote from what came later."""
        ended, sign = threading.Event(), self._aside / _ALIVE
        sign.touch()

        def beat() -> None:
            while not ended.wait(_BEAT):
                with contextlib.suppress(OSError):  # on a full disk there is no other sign
                    sign.touch()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextlib.contextmanager
    def _locked(self, root: str) -> Iterator[None]:
        """Hold a directory, because two checks in it would take each other's copies for the user's files."""
        directory = os.open(root, os.O_RDONLY)
        try:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.notify(f"waiting for another check in {root}")
                fcntl.flock(directory, fcntl.LOCK_EX)
            # The processes of a check that is killed live a little longer, and the next one must not take what they
            # still write for another program's.
            LOCKS.add(directory)
            yield
        finally:
            LOCKS.discard(directory)
            # Not by closing alone: a process of this check that has not ended yet has the lock as well.
            fcntl.flock(directory, fcntl.LOCK_UN)
            os.close(directory)


def _alike(one: str | Path, other: str | Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _begins_with(path: str, copy: str) -> bool:
    """Return whether a file has the content of a copy, to which something may have been added."""
    try:
        with Path(path).open("rb") as file, Path(copy).open("rb") as original:
            while chunk := original.read(1 << 20):
                if file.read(len(chunk)) != chunk:
                    return False
    except OSError:
        return False
    return True


def _state(path: str) -> State:
    try:
        found = os.lstat(path)
    except OSError:
        return (0,)
    return (found.st_size, found.st_mtime_ns, found.st_ino)


def _newest(path: str) -> float:
    """Return the time of the last change in a file or a directory."""
    below = Path(path).rglob("*") if Path(path).is_dir() and not Path(path).is_symlink() else ()
    return max(os.lstat(entry).st_mtime for entry in (path, *below))


def _size(path: Path) -> int:
    """Return the size (bytes) of a file, or of the files in a directory."""
    files = [path] if path.is_symlink() or not path.is_dir() else path.rglob("*")
    return sum(os.lstat(file).st_size for file in files if file.is_symlink() or file.is_file())


def _write_back(copy: str, path: str, state: State) -> None:
    file = Path(path)
    if not _alike(file, copy):
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(copy, file, follow_symlinks=False)
    os.utime(file, ns=(state[1], state[1]), follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_empty(path: str) -> bool:
    """Remove a directory in which there is no file; return whether it was one."""
    if not Path(path).is_dir() or Path(path).is_symlink():
        return False
    if any(files for _, _, files in os.walk(path)):
        return False
    shutil.rmtree(path)
    return True


def _names(paths: Iterable[str]) -> list[str]:
    """Return paths for a message: relative to the current directory, and many of one directory as that."""
    below: dict[str, list[str]] = defaultdict(list)
    for path in dict.fromkeys(paths):
        name = path.removeprefix(f"{Path.cwd()}/")
        top = name if name.startswith("/") else name.partition("/")[0]
        below[top].append(name)
    return [n[0] if len(n) == 1 else f"{top}/" for top, n in below.items()]
