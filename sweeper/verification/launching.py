"""Starting the processes that replays run in: as a sweep starts its trials, from the same source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sweeper.errors import DefinitionError, UsageError
from sweeper.execution.channel import StudySource
from sweeper.execution.isolation import (
    ForkLauncher,
    Launcher,
    Loaded,
    SpawnLauncher,
    WarmServer,
)

__all__ = ["open_launcher"]


@contextmanager
def open_launcher(
    source: StudySource, isolation: str, notice: Callable[[str], None]
) -> Iterator[tuple[Launcher, Loaded]]:
    """Give what starts trial processes, and what the study's module says.

    Args:
        source: Where the study is defined.
        isolation: ``"auto"``, ``"fork"`` or ``"spawn"``.
        notice: Told where processes have to be spawned although nobody asked for that.

    Raises:
        UsageError: Inline: a replay needs a process of its own.
        StudyFileError, StudyImportError, DefinitionError: The study cannot be loaded, or not forked
            although ``isolation`` says so.
    """
    if isolation == "inline":
        msg = "a replay runs in a fresh process, so isolation 'inline' cannot be; use 'auto'"
        raise UsageError(msg)
    server = WarmServer(source)
    launcher: Launcher | None = None
    try:
        loaded = server.loaded()
        if isolation == "spawn" or loaded.cannot_fork:
            if isolation == "fork":
                msg = f"processes cannot be forked: {loaded.cannot_fork}; use isolation 'auto'"
                raise DefinitionError(msg)
            if isolation != "spawn":
                notice(f"every replay starts a Python of its own, because {loaded.cannot_fork}")
            server.close()
            launcher = SpawnLauncher(server.loaded_source)
        else:
            launcher = ForkLauncher(server)
        yield launcher, loaded
    finally:
        (launcher or server).close()
