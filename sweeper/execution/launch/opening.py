"""What starts the processes of replays and evaluations: as a sweep starts its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sweeper.errors import UsageError
from sweeper.execution.launch.launchers import Loaded, WarmServer, choose_launcher
from sweeper.execution.launch.trial_process import Launcher
from sweeper.execution.protocol.study_source import StudySource


@contextmanager
def open_launcher(
    source: StudySource,
    isolation: str,
    notice: Callable[[str], None],
    what: str = "replay",
) -> Iterator[tuple[Launcher, Loaded]]:
    """Give what starts trial processes, and what the study's module says.

    Args:
        source: Where the study is defined.
        isolation: ``"auto"``, ``"fork"`` or ``"spawn"``.
        notice: Called where processes have to be spawned although nobody asked for that.
        what: What they are started for, for errors and notices.

    Raises:
        UsageError: Inline: a replay needs a process of its own.
        StudyFileError, StudyImportError, DefinitionError: The study cannot be loaded, or not forked
            although ``isolation`` says so.
    """
    if isolation == "inline":
        msg = f"every {what} runs in a fresh process, so isolation 'inline' cannot be; use 'auto'"
        raise UsageError(msg)
    server = WarmServer(source)
    launcher: Launcher | None = None
    try:
        loaded = server.loaded()
        launcher = choose_launcher(
            server,
            loaded,
            isolation,
            f"processes cannot be forked: {loaded.cannot_fork}; use isolation 'auto'",
        )
        if isolation == "auto" and loaded.cannot_fork:
            notice(f"every {what} starts a Python of its own, because {loaded.cannot_fork}")
        yield launcher, loaded
    finally:
        (launcher or server).close()
