"""The check of one study: processes that rehearse it, two at a time, and what their reports mean.

::

    lane 1   build, train some steps watched, a second trial in turn with the first, build again
    lane 2   build, train the same steps watched, build again │ killed in a step │ resumed

Each lane has a warm server of its own, so that the two runs of one trial are in processes with
other addresses and other orders of sets, as a run and its resume are. No database is opened, and
every file is below a temporary directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.definition import StudyDefinition, StudySettings
from sweeper.errors import CheckpointError
from sweeper.execution.isolation import ForkLauncher, SpawnLauncher, WarmServer
from sweeper.execution.rehearsal_driver import Draws, Heard, assignment_for, drive
from sweeper.execution.rehearsing import Rehearsal
from sweeper.execution.replaying import Replay
from sweeper.execution.sources import load_source, target_source
from sweeper.execution.trial_process import Launcher
from sweeper.independence.findings import CheckReport, Finding, Line, ranked
from sweeper.independence.lines import line_of_argument
from sweeper.independence.reports import StudyAuthors
from sweeper.preflight.ends import judge_ends, judge_resume
from sweeper.preflight.estimates import estimate
from sweeper.preflight.judging import Judgement, judge_runs
from sweeper.search.grids import check_grid
from sweeper.search.spec import needs_definition, search_spec

__all__ = ["check_study"]


def check_study(
    target: str, *, workers: int = 2, tell: Callable[[str], None] = lambda _: None
) -> CheckReport:
    """Check the study that ``target`` names.

    Args:
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``.
        workers: Trials side by side, for the estimates.
        tell: Told what is being done.

    Raises:
        UsageError, DefinitionError: There is no such study, or no study can be run as it is.
        ExecutionError: A process could not be started.
    """
    began = time.monotonic()
    tell("importing the study, in two processes")
    with (
        tempfile.TemporaryDirectory(prefix="sweeper-check-") as place,
        _servers(target) as opened,
    ):
        check = _Check(opened, Path(place), tell)
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
            launcher: Launcher = ForkLauncher(server)
            if loaded.cannot_fork:
                server.close()
                launcher = SpawnLauncher(source)
            held.callback(launcher.close)
            launchers.append(launcher)
        location = target.rpartition(":")[0] or target
        files = (Path(each).resolve() for each in (target, location))
        file = next((str(each) for each in files if each.is_file()), None)
        yield _Opened(settings, draws, (launchers[0], launchers[1]), loaded.cannot_fork, file)


class _Check:
    def __init__(self, opened: _Opened, place: Path, tell: Callable[[str], None]) -> None:
        self._opened = opened
        self._settings = opened.settings
        self._place = place
        self._tell = tell
        self._stopping = threading.Event()
        self._twins = Heard()
        self._train = Heard()
        self._killed: Heard | None = None
        self._resumed: Heard | None = None
        self._killed_at = 0

    def rehearse(self) -> None:
        """Run both lanes to their ends.

        Raises:
            SweeperError: A process could not be started.
        """
        with ThreadPoolExecutor(2) as pool:
            lanes = [pool.submit(self._lane_of_twins), pool.submit(self._lane_of_resume)]
            try:
                for lane in lanes:
                    lane.result()
            except BaseException:
                self._stopping.set()
                raise

    def report(self, workers: int) -> CheckReport:
        """What the lanes found."""
        reports = [heard.report for heard in (self._twins, self._train)]
        findings = [*self._of_settings()]
        for report in reports:
            findings += map(Finding.from_json, report.get("findings", ()))
        for heard in (self._twins, self._train):
            findings += self._of_death(heard)
        judgement = Judgement()
        if all(reports):
            deterministic = self._settings.deterministic
            judgement = judge_runs(reports[0], reports[1], deterministic=deterministic)
            self._judge_more(reports, judgement)
        findings += judgement.findings
        metrics = tuple(reports[0].get("metrics", ()) or reports[1].get("metrics", ()))
        findings += self._of_objectives(metrics, reports)
        return CheckReport(
            study=self._settings.name,
            findings=ranked(findings),
            held=(*self._held(reports, findings), *judgement.held),
            metrics=metrics,
            estimate=None
            if "timed" not in self._train.report
            else estimate(
                self._settings,
                self._train.report,
                workers=workers,
                startup_seconds=self._startup_seconds(),
                checkpoint_bytes=self._checkpoint_bytes(),
            ),
            seconds=self._seconds(reports),
            steps=sum(report.get("steps", 0) for report in reports),
        )

    def _lane_of_twins(self) -> None:
        assignment = assignment_for(self._settings, self._place / "twins", Rehearsal("twins"))
        self._twins = self._drive(0, assignment)

    def _lane_of_resume(self) -> None:
        assignment = assignment_for(self._settings, self._place / "train", Rehearsal("train"))
        self._train = self._drive(1, assignment)
        report = self._train.report
        if not report.get("complete") or report["end"][0] < 2:
            return
        end, steps = report["end"][0], report["epoch_steps"]
        lengths = report["lengths"]
        rehearsal = Rehearsal("trial", lengths["epoch_steps"], lengths["validation_steps"])
        before = steps + max(1, steps // 2) if end > steps + 1 else max(1, end // 2)
        self._killed_at = min(before + 1, end)
        self._tell(f"killing it after step {self._killed_at}, and resuming it")
        place = self._place / "trial"
        self._killed = self._drive(
            1,
            assignment_for(
                self._settings,
                place,
                rehearsal,
                replay=Replay((), also_after=before, die_after=self._killed_at),
            ),
        )
        self._resumed = self._drive(
            0,
            assignment_for(
                self._settings,
                place,
                rehearsal,
                attempts=2,
                replay=Replay((), also_after=end),
            ),
            until=end,
        )

    def _drive(self, lane: int, assignment: Any, until: int | None = None) -> Heard:
        launcher = self._opened.launchers[lane]
        return drive(launcher, assignment, self._opened.draws, self._stopping, until=until)

    def _judge_more(self, reports: list[dict[str, Any]], judgement: Judgement) -> None:
        if not judgement.repeats or not all("checkpoint" in report for report in reports):
            return
        authors = StudyAuthors.from_json(reports[0]["code"])
        whole, second = (Path(report["checkpoint"]) for report in reports)
        objectives = [objective.name for objective in self._settings.objectives]
        anyway = judge_ends(whole, second, authors, objectives, judgement)
        if self._killed is None or self._resumed is None:
            return
        end = reports[1]["end"][0]
        kept = self._resumed.checkpoints.get(end)
        if kept is None:
            judgement.find("error", "resume", self._why_not_resumed(end), authors.model.line)
            return
        try:
            judge_resume(whole, kept[0], anyway, authors, judgement, killed_at=self._killed_at)
        except CheckpointError as error:
            judgement.find("error", "resume", str(error), authors.model.line)

    def _why_not_resumed(self, end: int) -> str:
        for what, heard in (("to be killed", self._killed), ("resumed", self._resumed)):
            if heard is not None and heard.failed is not None:
                return f"the trial that was {what} failed: {heard.failed.error}"
        how = "ended"
        if self._resumed is not None and self._resumed.status is not None:
            how = self._resumed.status.describe()
        return (
            f"the resumed trial never came to step {end}, which the same trial without a kill did: "
            f"its process {how}"
        )

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
        self, metrics: tuple[str, ...], reports: list[dict[str, Any]]
    ) -> Iterator[Finding]:
        if not metrics or not any(report.get("end", [0, 0])[1] for report in reports):
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

    def _of_death(self, heard: Heard) -> Iterator[Finding]:
        if heard.report:
            return
        if heard.failed is not None:
            told = f"{heard.stage} failed: {heard.failed.error}"
        else:
            how = "ended" if heard.status is None else heard.status.describe()
            told = f"the process of the trial {how} while it was {heard.stage}"
        yield Finding("error", "build", told, self._argument("model"))

    def _held(self, reports: list[dict[str, Any]], findings: list[Finding]) -> Iterator[str]:
        wrong = {finding.check for finding in findings if finding.level == "error"}
        twins = reports[0]
        if "independence" not in wrong and "walked" in twins:
            one, two = twins["walked"]
            yield (
                f"two trials, walked against each other ({one} and {two} objects that training "
                "changes), share none"
            )
            if twins.get("complete"):
                yield "two trials trained in turn do not move each other"
        if "capture" not in wrong and "trace" in twins:
            yield "everything that training changes can be captured"
        names = [objective.name for objective in self._settings.objectives]
        if "objective" not in wrong and set(names) <= set(twins.get("metrics", ())):
            yield f"the objective {', '.join(map(repr, names))} is among what an epoch reports"

    def _argument(self, argument: str) -> Line | None:
        if self._opened.file is None:
            return None
        return line_of_argument(self._opened.file, self._settings.name, argument)

    def _startup_seconds(self) -> float:
        started = None if self._killed is None else self._killed.started_after
        return float(self._train.report["seconds"]["startup"]) if started is None else started

    def _checkpoint_bytes(self) -> int:
        heard = self._killed
        if heard is not None and heard.checkpoints:
            return max(size for _, size in heard.checkpoints.values())
        path = self._train.report.get("checkpoint")
        if path is None:
            return 0
        return sum(file.stat().st_size for file in Path(path).iterdir())

    def _seconds(self, reports: list[dict[str, Any]]) -> dict[str, float]:
        """Where the time went, added up over the processes; never too much for the steps."""
        told = [report["seconds"] for report in reports if "seconds" in report]
        seconds = {name: sum(each[name] for each in told) for name in ("startup", "steps", "work")}
        timed = self._train.report.get("timed")
        end = self._train.report.get("end", [0])[0]
        for heard, steps in (
            (self._killed, self._killed_at),
            (self._resumed, end - self._killed_at),
        ):
            if heard is not None and heard.started_after is not None and timed is not None:
                seconds["startup"] += heard.started_after
                seconds["work"] += heard.seconds - heard.started_after
                seconds["steps"] += steps * timed["seconds"] / max(1, timed["steps"])
        return seconds
