"""A glance at a new study before its first trial: do its factories share what training changes?

One throwaway process builds the first trial under guard. If that is refused, every trial would be,
one by one; so the run ends here, with both ends named. Nothing else ends it: a factory that fails
for the first trial's parameters may work for the others', and each trial says so itself. A study
that takes long to build is not waited for, since the guard is around every trial all the same.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from sweeper.errors import ExecutionError, IndependenceError
from sweeper.execution.preparing import PreparedStudy
from sweeper.execution.rehearsal_driver import Draws, assignment_for, drive
from sweeper.execution.rehearsing import Rehearsal
from sweeper.independence.findings import Finding

__all__ = ["refuse_early"]

_PATIENCE = {"fork": 4.0, "spawn": 12.0}
"""Seconds that a run waits at most; most of a spawned process's go into importing TensorFlow."""


def refuse_early(prepared: PreparedStudy) -> None:
    """Refuse a study that has run no trial yet, if its first trial would be refused.

    Raises:
        IndependenceError: It would; the line of the factory is told, and both ends.
    """
    launcher = prepared.runner
    if callable(launcher):
        # Inline there is no process to throw away, and the first trial tells at once.
        return
    settings = prepared.settings
    status = prepared.repository.status(settings.name)
    if status.finished or status.running or status.interrupted or status.failed:
        return
    with tempfile.TemporaryDirectory(prefix="sweeper-glance-") as place:
        try:
            heard = drive(
                launcher,
                assignment_for(settings, Path(place), Rehearsal("glance")),
                Draws(prepared.search),
                threading.Event(),
                patience=_PATIENCE.get(launcher.isolation),
            )
        except ExecutionError:
            # The first trial meets the same, and has the words for it.
            return
    for finding in map(Finding.from_json, heard.report.get("findings", ())):
        if finding.level == "error" and finding.check == "independence":
            where = "" if finding.line is None else f"{finding.line}: "
            msg = f"{where}{finding.message}; no trial was run, since each would be refused"
            raise IndependenceError(msg)
