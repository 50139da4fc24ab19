"""Early check of a new study: trials that would be refused, and values that cannot be compared.

Two separate processes build the study's first two trials under guard, one each, while the run starts.
No trial begins before both are known to be sound, however long they take to build (up to a trial's
time limit, if there is one): a refusal must not depend on the speed of a machine. If a trial would be
refused, the run ends with an error that names the cause. No other error ends the run: a factory that
fails for the parameters of these trials may work for other trials, and each trial reports its own
failure.

Both processes then read their validation data, while trials run. If these differ, the second trial is
built once more with the parameters of the first, and the user is warned if they still differ.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.errors import ExecutionError, IndependenceError, Interrupted
from sweeper.records.events import Doing, Listener, Notice
from sweeper.replay.reports import Line, RehearsalReport
from sweeper.run.prepared_study import PreparedStudy
from sweeper.run.protocol.messages import Rehearsal, Rehearsing
from sweeper.run.rehearsals import rehearse, validation_compares
from sweeper.support.paths import scratch_directory

if TYPE_CHECKING:
    from sweeper.run.launch.trial_process import Launcher

_LOOK_SECONDS = 1.0
"""Seconds between two queries for a request to stop while the first trial waits."""


@contextmanager
def early_check(
    prepared: PreparedStudy, listener: Listener, *, wanted: bool = True
) -> Iterator[EarlyCheck]:
    """Context manager that checks a study in the background, and waits for the check at the end.

    Studies that have already begun a trial are not checked. Neither are inline trials, which have no
    separate process and are guarded against earlier trials of the same process. The listener is called
    from another thread.
    """
    launcher = prepared.runner
    status = prepared.repository.status(prepared.settings.name, each=False)
    begun = status.finished or status.running or status.interrupted or status.failed
    check = EarlyCheck(
        prepared, None if callable(launcher) or begun or not wanted else launcher, listener
    )
    try:
        yield check
        check.finish()
    finally:
        check.stop()


@dataclass
class _Built:
    """Trial that is built in a separate process.

    Attributes:
        known: Set once the trial is sound or refused, or its process has ended.
        refusal: The error with which the trial would be refused; None if it would not.
    """

    number: int
    known: threading.Event = field(default_factory=threading.Event)
    refusal: IndependenceError | None = None

    def hear(self, rehearsing: Rehearsing) -> None:
        """Record the process's next activity."""
        if rehearsing.sound:
            self.known.set()

    def judge(self, report: RehearsalReport | None) -> None:
        """Record the process's report."""
        for finding in () if report is None else report.findings:
            if finding.check == "independence" and finding.level == "error":
                which = f"trial {self.number}" if self.number else "each"
                self.refusal = IndependenceError(
                    f"{_at(finding.line)}{finding.message}; no trial was run, because {which} "
                    "would be refused"
                )
                return


class EarlyCheck:
    """Running check of a study.

    Without a launcher there is nothing to check. The listener receives warnings from the check's own
    thread.
    """

    def __init__(
        self, prepared: PreparedStudy, launcher: Launcher | None, listener: Listener
    ) -> None:
        self._prepared = prepared
        self._listener = listener
        self._stopping = threading.Event()
        self._known = threading.Event()
        self._refusal: IndependenceError | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        if launcher is None:
            self._known.set()
            return
        listener(Doing("checking once for this new study whether two trials share anything"))
        self._thread = threading.Thread(
            target=self._run, args=(launcher,), name="sweeper-early-check", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until trials may begin, or the study is asked to stop.

        Raises:
            IndependenceError: Trials would be refused, because they share an object.
        """
        while not self._known.wait(_LOOK_SECONDS):
            if self._stop_requested():
                return
        if self._failure is not None:
            raise self._failure
        if self._refusal is not None:
            raise self._refusal

    def _stop_requested(self) -> bool:
        return self._prepared.repository.stop_requested(self._prepared.settings.name) is not None

    def finish(self) -> None:
        """Wait for the complete check with its warnings; end it if the study is asked to stop."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._thread.is_alive() and self._stop_requested():
                self.stop()
        self.wait()

    def stop(self) -> None:
        """End the check."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, launcher: Launcher) -> None:
        try:
            self._check(launcher)
        except (ExecutionError, Interrupted):
            # Either the first trial meets the same error and reports it, or the run is over.
            return
        except BaseException as error:
            # `wait` raises it.
            self._failure = error
        finally:
            self._known.set()

    def _check(self, launcher: Launcher) -> None:
        with scratch_directory("early-check") as scratch, ThreadPoolExecutor(2) as pool:
            directory = Path(scratch)
            trials = [_Built(number) for number in (0, 1)]
            reports = [pool.submit(self._build, launcher, directory, each) for each in trials]
            for each in trials:
                each.known.wait()
                if each.refusal is not None:
                    self._refusal = each.refusal
                    self._stopping.set()
                    return
            self._known.set()
            first, second = (report.result() for report in reports)
            finding = validation_compares(
                first, second, lambda more: self._rehearse(launcher, directory / "alike", more)
            )
            if finding is not None:
                self._listener(Notice(f"{_at(finding.line)}{finding.message}"))

    def _build(self, launcher: Launcher, directory: Path, built: _Built) -> RehearsalReport | None:
        try:
            report = self._rehearse(
                launcher, directory / str(built.number), Rehearsal("build", built.number), built
            )
            built.judge(report)
        finally:
            built.known.set()
        return report

    def _rehearse(
        self,
        launcher: Launcher,
        directory: Path,
        rehearsal: Rehearsal,
        built: _Built | None = None,
    ) -> RehearsalReport | None:
        return rehearse(
            launcher,
            self._prepared.settings,
            directory,
            rehearsal,
            self._prepared.search,
            stopping=self._stopping,
            tell=(lambda _: None) if built is None else built.hear,
            patience=self._prepared.settings.time_limit,
        ).report


def _at(line: Line | None) -> str:
    return "" if line is None else f"{line}: "
