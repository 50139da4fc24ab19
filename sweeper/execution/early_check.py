"""An early check of a new study: may its trials be run, or would they share what training changes?

One throwaway process builds the study's first two trials under guard, while the run starts. No trial
begins before they are known to be sound, however long they take to build (up to a trial's own time
limit, if there is one): what is refused must not depend on how fast a machine is. If one would be
refused, the run ends with both ends named. Nothing else ends it: a factory that fails for these trials' parameters may work for the others', and each
trial says so itself.

The check goes on while trials run. It builds a trial more with the parameters of each, and says what
a cache or a registry would make them share if they were in one process; and it builds the second
trial alone, to see whether it begins as it did after the first. These are warnings. The run ends
after them, so that they never depend on luck either.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.errors import ExecutionError, IndependenceError, Interrupted
from sweeper.events import Listener, Notice
from sweeper.execution.prepared_study import PreparedStudy
from sweeper.execution.protocol.rehearsals import Part, Rehearsal, Rehearsing
from sweeper.execution.rehearsals import Draws, rehearsal_assignment, rehearse
from sweeper.independence.findings import Line
from sweeper.independence.reports import RehearsalReport
from sweeper.support.scratch import scratch_directory

if TYPE_CHECKING:
    from sweeper.execution.launch.trial_process import Launcher

_UNTOLD_SECONDS = 4.0
"""How long the first trial waits without a word."""

_LOOK_SECONDS = 1.0
"""How often it then looks whether somebody asks the study to stop."""


@contextmanager
def early_check(
    prepared: PreparedStudy, listener: Listener, *, wanted: bool = True
) -> Iterator[EarlyCheck]:
    """Check a study beside what is done inside; at the end, wait for the rest of it.

    A study that has run a trial before is not checked, and neither are inline trials: there is no
    process to throw away, and each trial is guarded against those before it.

    Args:
        prepared: The study.
        listener: Called with warnings, from another thread.
        wanted: Whether to check at all.
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


class EarlyCheck:
    """One check, running until it is over.

    Args:
        prepared: The study.
        launcher: Starts the process; None where there is nothing to check.
        listener: Called with warnings, from a thread of the check's own.
    """

    def __init__(
        self, prepared: PreparedStudy, launcher: Launcher | None, listener: Listener
    ) -> None:
        self._prepared = prepared
        self._listener = listener
        self._stopping = threading.Event()
        self._known = threading.Event()
        self._number = 0
        self._refusal: IndependenceError | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        if launcher is None:
            self._known.set()
            return
        self._thread = threading.Thread(
            target=self._run, args=(launcher,), name="sweeper-early-check", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return once trials may begin, or the study is asked to stop, which workers heed first.

        Raises:
            IndependenceError: They would be refused; the line of the factory is named, and both ends.
        """
        if not self._known.wait(_UNTOLD_SECONDS):
            self._listener(
                Notice(
                    "the first trial waits until two trials of this new study are built, to see "
                    "whether they share anything; that is done once"
                )
            )
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
        """Wait for all of it, warnings included; end it if the study is asked to stop."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._thread.is_alive() and self._stop_requested():
                self.stop()
        self.wait()

    def stop(self) -> None:
        """End it, wherever it is."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, launcher: Launcher) -> None:
        try:
            self._check(launcher)
        except (ExecutionError, Interrupted):
            # The first trial meets the same and has the words for it; or the run is over.
            return
        except BaseException as error:
            # Raised where the run waits.
            self._failure = error
        finally:
            self._known.set()

    def _check(self, launcher: Launcher) -> None:
        with scratch_directory("early-check") as directory:
            report = self._rehearse(launcher, Path(directory), "early")
            findings = () if report is None else report.findings
            for finding in findings:
                refused = finding.check == "independence" and finding.level == "error"
                if refused and not self._known.is_set():
                    which = "each" if self._number == 0 else f"trial {self._number}"
                    self._refusal = IndependenceError(
                        f"{_at(finding.line)}{finding.message}; no trial was run, since {which} "
                        "would be refused"
                    )
                    return
            self._known.set()
            shared = [finding for finding in findings if finding.check == "isolation"]
            for finding in shared:
                self._listener(Notice(f"{_at(finding.line)}{finding.message}"))
            weights = None if report is None else report.second_weights
            if weights and not shared:
                alone = self._rehearse(launcher, Path(directory) / "alone", "alone")
                self._compare(weights, alone)

    def _rehearse(self, launcher: Launcher, directory: Path, part: Part) -> RehearsalReport | None:
        return rehearse(
            launcher,
            rehearsal_assignment(self._prepared.settings, directory, Rehearsal(part)),
            Draws(self._prepared.search),
            self._stopping,
            tell=self._handle,
            patience=self._prepared.settings.time_limit,
        ).report

    def _compare(self, weights: tuple[str, ...], alone: RehearsalReport | None) -> None:
        """Warn if a trial begins otherwise when another was built before it."""
        if alone is None or alone.second_weights in (None, weights):
            return
        model = alone.code.model
        self._listener(
            Notice(
                f"{_at(model.line)}trial 1 begins with other weights when trial 0 was built before "
                f"it in the same process: {model.name} goes by something that an earlier call left "
                "behind, or does not repeat at all, which `sweeper check` tells. In this run every "
                "trial has a process of its own; with isolation='inline', or in a loop of your own, "
                "its result would depend on the trials before it"
            )
        )

    def _handle(self, rehearsing: Rehearsing) -> None:
        self._number = rehearsing.number
        if rehearsing.sound:
            self._known.set()


def _at(line: Line | None) -> str:
    return "" if line is None else f"{line}: "
