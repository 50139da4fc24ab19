"""The check of one study: processes that rehearse it, two at a time, and what their reports mean.

::

    lane 1   build, train three epochs watched, a second trial in turn with the first, build again
             │ the second trial alone │ killed │ resumed │ …
    lane 2   build, train the same watched, build again │ killed │ resumed │ …

Each lane has a warm server of its own, so that the two runs of one trial are in processes with
other addresses and other orders of sets, as a run and its resume are. What is killed in the one is
resumed in the other. No database is opened, and every file is below a temporary directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.definition import StudyDefinition, StudySettings
from sweeper.execution.launch.launchers import WarmServer, choose_launcher
from sweeper.execution.launch.sources import load_source, target_source
from sweeper.execution.launch.trial_process import Launcher
from sweeper.execution.protocol.rehearsals import Rehearsal
from sweeper.execution.rehearsals import Draws, Received, rehearsal_assignment, rehearse
from sweeper.execution.side_by_side import wait_for_all
from sweeper.independence.findings import CheckReport, Estimate, Finding, Line, ranked
from sweeper.independence.lines import line_of_argument
from sweeper.independence.reports import RehearsalReport
from sweeper.preflight.ends import judge_ends, judge_interruptions
from sweeper.preflight.estimates import estimate
from sweeper.preflight.interruptions import Interruption, Resumed, interrupt, interruptions
from sweeper.preflight.judging import Judgement, judge_runs, judge_second
from sweeper.search.grids import check_grid
from sweeper.search.spec import needs_definition, search_spec
from sweeper.support.scratch import scratch_directory


def check_study(
    target: str, *, workers: int = 2, tell: Callable[[str], None] = lambda _: None
) -> CheckReport:
    """Check the study that ``target`` names.

    Args:
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``.
        workers: Trials side by side, for the estimates.
        tell: Called with what is being done.

    Raises:
        UsageError, DefinitionError: There is no such study, or no study can be run as it is.
        ExecutionError: A process could not be started.
    """
    began = time.monotonic()
    tell("importing the study, in two processes")
    with (
        scratch_directory("check") as directory,
        _servers(target) as opened,
    ):
        check = _Check(opened, Path(directory), tell)
        tell("building it, and training some steps, twice")
        check.rehearse()
        report = check.report(workers)
    seconds = {**(report.seconds or {}), "total": time.monotonic() - began}
    return dataclasses.replace(report, seconds=seconds)


@dataclass(frozen=True)
class _Opened:
    """The study, ready to be rehearsed; one launcher a lane."""

    settings: StudySettings
    draws: Draws
    launchers: tuple[Launcher, Launcher]
    cannot_fork: str
    processes: int
    file: str | None


@contextmanager
def _servers(target: str) -> Iterator[_Opened]:
    source = target_source(target)
    with contextlib.ExitStack() as held:
        servers = []
        for _ in range(2):
            server = WarmServer(source)
            held.callback(server.close)
            servers.append(server)
        loaded, _ = (server.loaded() for server in servers)
        settings = loaded.settings
        if settings.sampler == "grid":
            check_grid(settings.grid, settings.trials)
        definition: StudyDefinition | None = None
        if needs_definition(settings):
            definition = load_source(source)
        draws = Draws(search_spec(settings, definition))
        launchers: list[Launcher] = []
        for server in servers:
            launcher = choose_launcher(server, loaded, "auto")
            held.callback(launcher.close)
            launchers.append(launcher)
        location = target.rpartition(":")[0] or target
        files = (Path(each).resolve() for each in (target, location))
        file = next((str(each) for each in files if each.is_file()), None)
        yield _Opened(
            settings,
            draws,
            (launchers[0], launchers[1]),
            loaded.cannot_fork,
            loaded.processes,
            file,
        )


class _Check:
    def __init__(self, opened: _Opened, directory: Path, tell: Callable[[str], None]) -> None:
        self._opened = opened
        self._settings = opened.settings
        self._directory = directory
        self._tell = tell
        self._stopping = threading.Event()
        self._twins = Received()
        self._train = Received()
        self._alone = Received()
        self._resumed: tuple[Resumed, ...] = ()

    def rehearse(self) -> None:
        """Run both lanes to their ends.

        Raises:
            SweeperError: A process could not be started.
        """
        with ThreadPoolExecutor(2) as pool:
            try:
                twins = pool.submit(self._run_twins)
                train = pool.submit(self._run_train)
                wait_for_all([train])
                train.result()
                killed = [
                    pool.submit(self._interrupt, interruption, lane)
                    for lane, interruption in zip((1, 0), self._interruptions(), strict=False)
                ]
                wait_for_all([twins, *killed])
                twins.result()
                self._resumed = tuple(each.result() for each in killed)
            except BaseException:
                self._stopping.set()
                raise

    def report(self, workers: int) -> CheckReport:
        """What the lanes found."""
        reports = [outcome.report for outcome in (self._twins, self._train)]
        known = [report for report in reports if report is not None]
        findings = [*self._of_settings()]
        for report in known:
            findings += report.findings
        for outcome in (self._twins, self._train):
            findings += self._of_death(outcome)
        judgement = Judgement()
        if len(known) == len(reports):
            findings += judge_second(known[0], known[1], self._alone.report)
            deterministic = self._settings.deterministic
            judgement = judge_runs(known[0], known[1], deterministic=deterministic)
            self._judge_more(known, judgement)
        findings += judgement.findings
        metrics = next((report.metrics for report in known if report.metrics), ())
        findings += self._of_objectives(metrics, known)
        return CheckReport(
            study=self._settings.name,
            findings=ranked(findings),
            held=(*self._held(reports[0], findings), *judgement.held),
            metrics=metrics,
            estimate=self._estimate(workers),
            seconds=self._seconds(known),
            steps=sum(report.steps for report in known),
        )

    def _estimate(self, workers: int) -> Estimate | None:
        report = self._train.report
        if report is None:
            return None
        return estimate(
            self._settings,
            report,
            workers=workers,
            startup_seconds=self._startup_seconds(report),
            checkpoint_bytes=self._checkpoint_bytes(report),
        )

    def _run_twins(self) -> None:
        assignment = rehearsal_assignment(
            self._settings, self._directory / "twins", Rehearsal("twins")
        )
        self._twins = self._drive(0, assignment)
        report = self._twins.report
        if report is not None and report.second_weights is not None:
            self._alone = self._drive(
                0,
                rehearsal_assignment(self._settings, self._directory / "alone", Rehearsal("alone")),
            )

    def _run_train(self) -> None:
        assignment = rehearsal_assignment(
            self._settings, self._directory / "train", Rehearsal("train")
        )
        self._train = self._drive(1, assignment)

    def _interruptions(self) -> tuple[Interruption, ...]:
        report = self._train.report
        if report is None or not report.complete or report.end < 2:
            return ()
        self._tell("killing it in several places, and resuming it")
        return interruptions(report.end, report.epoch_steps)

    def _interrupt(self, interruption: Interruption, lane: int) -> Resumed:
        report = self._train.report
        if report is None or report.lengths is None:
            msg = "there is nothing to interrupt: no trial was rehearsed"
            raise ValueError(msg)
        lengths = report.lengths
        return interrupt(
            interruption,
            self._settings,
            self._directory,
            rehearsal=Rehearsal("trial", lengths.epoch_steps, lengths.validation_steps),
            end=report.end,
            drive=lambda number, assignment, until: self._drive(
                (lane + number) % 2, assignment, until
            ),
        )

    def _drive(self, lane: int, assignment: Any, until: int | None = None) -> Received:
        launcher = self._opened.launchers[lane]
        return rehearse(launcher, assignment, self._opened.draws, self._stopping, until=until)

    def _judge_more(self, reports: list[RehearsalReport], judgement: Judgement) -> None:
        paths = [Path(each.checkpoint) for each in reports if each.checkpoint is not None]
        if not judgement.repeats or len(paths) < len(reports):
            return
        authors = reports[0].code
        whole, second = paths
        objectives = [objective.name for objective in self._settings.objectives]
        anyway = judge_ends(whole, second, authors, objectives, judgement)
        judge_interruptions(whole, self._resumed, anyway, authors, judgement)

    def _of_settings(self) -> Iterator[Finding]:
        settings = self._settings
        if not settings.deterministic:
            yield Finding(
                "warning",
                "settings",
                "deterministic=False: kernels need not give the same bits twice, so exactness is "
                "not promised: a resumed or repeated trial may end with another result",
                self._argument("deterministic"),
            )
        if self._opened.processes > 1:
            yield Finding(
                "note",
                "settings",
                f"a trial trains in {self._opened.processes} processes, and is tried here in one: "
                "what only several can do wrong is not seen",
                self._argument("strategy"),
            )
        if self._opened.cannot_fork:
            yield Finding(
                "note",
                "settings",
                f"every trial starts a Python of its own, some seconds each, because "
                f"{self._opened.cannot_fork}; do that inside the factories, and trials start at "
                "once",
                self._argument("name"),
            )

    def _of_objectives(
        self, metrics: tuple[str, ...], reports: list[RehearsalReport]
    ) -> Iterator[Finding]:
        if not metrics or not any(report.epochs for report in reports):
            return
        for objective in self._settings.objectives:
            if objective.name not in metrics:
                yield Finding(
                    "error",
                    "objective",
                    f"the objective {objective.name!r} was not reported at the end of an epoch; "
                    f"reported were {', '.join(map(repr, metrics))}",
                    self._argument("objective"),
                )

    def _of_death(self, outcome: Received) -> Iterator[Finding]:
        if outcome.report is not None:
            return
        if outcome.failed is not None:
            shown = f"{outcome.stage} failed: {outcome.failed.error}"
        else:
            how = "ended" if outcome.status is None else outcome.status.describe()
            shown = f"the process of the trial {how} while it was {outcome.stage}"
        yield Finding("error", "build", shown, self._argument("model"))

    def _held(self, twins: RehearsalReport | None, findings: list[Finding]) -> Iterator[str]:
        wrong = {finding.check for finding in findings if finding.level == "error"}
        if twins is None:
            return
        if "independence" not in wrong and twins.walked is not None:
            one, two = twins.walked
            yield (
                f"two trials, walked against each other ({one} and {two} objects that training "
                "changes), share none"
            )
            if twins.complete:
                yield "two trials trained in turn do not move each other"
        if "capture" not in wrong and twins.trace is not None:
            yield "everything that training changes can be captured"
        names = [objective.name for objective in self._settings.objectives]
        if "objective" not in wrong and set(names) <= set(twins.metrics):
            yield f"the objective {', '.join(map(repr, names))} is among what an epoch reports"

    def _argument(self, argument: str) -> Line | None:
        if self._opened.file is None:
            return None
        return line_of_argument(self._opened.file, self._settings.name, argument)

    def _attempts(self) -> list[tuple[Received, int]]:
        """The processes that were killed or resumed, and the steps that each ran."""
        return [
            pair for each in self._resumed for pair in zip(each.attempts, each.steps, strict=False)
        ]

    def _startup_seconds(self, report: RehearsalReport) -> float:
        started = [outcome.started_after for outcome, _ in self._attempts()]
        known = [seconds for seconds in started if seconds is not None]
        return known[0] if known else report.seconds.startup

    def _checkpoint_bytes(self, report: RehearsalReport) -> int:
        for outcome, _ in self._attempts():
            if outcome.checkpoints:
                return max(size for _, size in outcome.checkpoints.values())
        if report.checkpoint is None:
            return 0
        return sum(file.stat().st_size for file in Path(report.checkpoint).iterdir())

    def _seconds(self, reports: list[RehearsalReport]) -> dict[str, float]:
        """Where the time went, added up over the processes; never too much for the steps."""
        seconds = {
            name: sum(getattr(report.seconds, name) for report in reports)
            for name in ("startup", "steps", "work")
        }
        timed = None if self._train.report is None else self._train.report.timed
        for outcome, steps in self._attempts():
            if outcome.started_after is not None and timed is not None:
                seconds["startup"] += outcome.started_after
                seconds["work"] += outcome.seconds - outcome.started_after
                seconds["steps"] += steps * timed.seconds / max(1, timed.steps)
        return seconds
