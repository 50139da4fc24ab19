"""Worker host: the slots of one machine for a study in a shared database, and its placement on a cluster.

A host does not change the study. The study's file on this machine must equal the stored one, because
otherwise the machines would run trials of different studies.

A task of a cluster starts a host on its node as a detached process, so that it survives the driver and
the cluster's own processes. Its `HostSpec` goes through standard input and not onto the command line,
because it contains the database's URL and, for a study from a notebook, the definition.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sweeper.checkpoint.remote_objects import check_checkpoints_location
from sweeper.errors import ExecutionError, UsageError
from sweeper.records.events import Listener, Notice
from sweeper.records.results import StudyStatus
from sweeper.run.options import HostSpec
from sweeper.run.prepared_study import prepare_host
from sweeper.run.self_test import prove_environment
from sweeper.run.signals import early_termination

if TYPE_CHECKING:
    from sweeper.db.repository import Repository

_LAST_LINES = 20
"""Number of lines shown of a failed host's log."""


@dataclass(frozen=True)
class HostEnd:
    """End of a worker host: its exit code, the file with its output, and that file's last lines."""

    machine: str
    code: int
    log: str
    last_lines: str


_SPECS: TypeAdapter[HostSpec] = TypeAdapter(HostSpec)


def write_spec(spec: HostSpec) -> str:
    return _SPECS.dump_json(spec).decode()


def read_spec(text: str) -> HostSpec:
    return _SPECS.validate_json(text)


def run_host(text: str) -> HostEnd:
    """Start the worker host of a `HostSpec` on this machine, wait for it, and return its end."""
    spec = read_spec(text)
    machine = socket.gethostname()
    log = spec.options.paths(spec.study).worker_log(f"{spec.engine}-{machine}-{spec.number}")
    log.parent.mkdir(parents=True, exist_ok=True)
    start = log.stat().st_size if log.exists() else 0
    code = _run_detached(["-P", "-m", "sweeper", "worker", spec.study, "--ordered"], text, log)
    with log.open("rb") as output:
        output.seek(start)
        lines = output.read().decode(errors="replace").splitlines()
    last_lines = "\n".join(lines[-_LAST_LINES:])
    return HostEnd(machine, code, str(log), last_lines)


def _run_detached(words: list[str], text: str, log: Path) -> int:
    """Run Python with ``words`` and input ``text`` in a detached process; return its exit code."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as ended:
        starting = [sys.executable, "-P", "-m", "sweeper.run.cluster.detached", str(writing)]
        # This copy is closed after the start, so that the read ends when the detached process does.
        with os.fdopen(writing, "wb"), log.open("ab") as output:
            starter = subprocess.Popen(
                [*starting, sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
            )
        starter.communicate(text.encode())
        code = ended.read()
    return int(code) if code else -1


def run_worker(spec: HostSpec, listener: Listener) -> StudyStatus:
    """Run trials until the study is done; return its status.

    Raises:
        Interrupted: A signal, a request to stop, or the study's time limit; every trial that ran
            here is checkpointed and can be resumed.
    """
    check_checkpoints_location(spec.options.checkpoints, spec.options.isolation)
    prove_environment(lambda text: listener(Notice(text)), accept=spec.options.accept_inexact)
    with early_termination():
        if spec.placed_from is None:
            stopped = _clear_stop(spec, listener)
            if stopped is not None:
                return stopped
        with prepare_host(spec, listener) as prepared:
            from sweeper.run.serving import serve_slots

            _check_machine(prepared.study.repository, spec)
            return serve_slots(
                prepared,
                spec.options,
                listener,
                engine=spec.engine,
                resume_command=spec.resume_command,
            )


def _clear_stop(spec: HostSpec, listener: Listener) -> StudyStatus | None:
    """Clear a request to stop; with ``unless_stopped``, obey it and return the study's status."""
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with Database.open(spec.options.storage, create=False) as database:
        repository = Repository(database)
        if spec.unless_stopped and repository.stop_requested(spec.study) is not None:
            listener(
                Notice(
                    f"study {spec.study!r} was asked to stop, so this machine runs none of its "
                    f"trials; `sweeper resume {spec.study!r}` continues it"
                )
            )
            return repository.status(spec.study)
        repository.clear_stop(spec.study)
        return None


def _check_machine(repository: Repository, spec: HostSpec) -> None:
    """Check that only one machine uses a database file: not the one that placed this host, or workers."""
    if not repository.database.in_file:
        return
    here = socket.gethostname()
    advice = (
        "a SQLite file is for processes of one machine; copy it to a server with `sweeper db "
        "copy`, and use --storage postgresql://…"
    )
    if spec.placed_from not in (None, here):
        raise ExecutionError(
            f"this worker is on {here}, but its database is a file on {spec.placed_from}; {advice}"
        )
    others = {
        worker.host
        for worker in repository.workers(spec.study)
        if worker.live and worker.host != here
    }
    if others:
        raise UsageError(
            f"workers on {', '.join(sorted(others))} use this database as well; {advice}"
        )
