"""Worker host: the slots of this machine for a study in a shared database.

A host does not change the study: the definition, the total and the path of the study's file are those
that the first run stored. The study's file on this machine must equal the stored one byte for byte,
because otherwise the machines would run trials of different studies.
"""

from __future__ import annotations

import socket

from sweeper.checkpoint.remote_objects import check_checkpoints_location
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import ExecutionError, UsageError
from sweeper.records.events import Listener, Notice
from sweeper.records.results import StudyStatus
from sweeper.run.options import HostSpec
from sweeper.run.prepared_study import PreparedStudy
from sweeper.run.signals import early_termination


def run_worker(spec: HostSpec, listener: Listener) -> StudyStatus:
    """Run trials until the study is done; return its status.

    Raises:
        Interrupted: A signal, a request to stop, or the study's time limit; every trial that ran
            here is checkpointed and can be resumed.
        UsageError: There is no such study, or its file differs on this machine.
        SweeperError: Something other than a trial failed.
    """
    check_checkpoints_location(spec.options.checkpoints, spec.options.isolation)
    with early_termination():
        if spec.placed_from is None:
            stopped = _begin(spec, listener)
            if stopped is not None:
                return stopped
        with PreparedStudy.to_serve(spec, listener) as prepared:
            from sweeper.run.serving import bind_slots, serve_slots

            _check_machine(prepared.repository, spec)
            options, devices = bind_slots(spec.options, listener)
            return serve_slots(
                prepared,
                options,
                devices,
                listener,
                engine=spec.engine,
                resume_command=spec.resume_command,
            )


def _begin(spec: HostSpec, listener: Listener) -> StudyStatus | None:
    """Clear a request to stop; with ``unless_stopped``, obey it and return the study's status."""
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
    """Check that only one machine uses a database file.

    Raises:
        ExecutionError: The run that placed this host is on another machine.
        UsageError: Workers on other machines use the file, too.
    """
    if not repository.database.in_file:
        return
    here = socket.gethostname()
    advice = (
        "a SQLite file is for processes of one machine; copy it to a server with `sweeper db "
        "copy`, and use --storage postgresql://…"
    )
    if spec.placed_from not in (None, here):
        msg = (
            f"this worker is on {here}, but its database is a file on {spec.placed_from}; {advice}"
        )
        raise ExecutionError(msg)
    others = {
        worker.host
        for worker in repository.workers(spec.study)
        if worker.live and worker.host != here
    }
    if others:
        msg = f"workers on {', '.join(sorted(others))} use this database as well; {advice}"
        raise UsageError(msg)
