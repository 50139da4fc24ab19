"""`sweeper check`: rehearsals of a study in two parallel lanes, their comparison, and estimates of cost.

::

    lane 1   build, train three epochs watched │ build trial 0, read its data │ trial 1 likewise │ …
    lane 2   build, train the same watched │ killed │ resumed │ … │ several trials together

A process builds one trial, as a process of `run` does; only the last one builds several, to find
what would make them dependent in one process (``isolation="inline"``), which is not a finding. Each
lane has its own fork server, so that the two runs of one trial differ in addresses and orders of
sets, as a run and its resume do. A trial that is killed in one lane is resumed in the other. No
database is opened, and every file is below a temporary directory.

Estimates are upper bounds: a trial that stops early takes less time, and retention rules with a
metric may keep fewer checkpoints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.checks.interrupted_runs import (
    Interruption,
    Resumed,
    interruptions,
    judge_ends,
    judge_interruptions,
)
from sweeper.checks.judging import Judgement, judge_runs, judge_trials
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.files.aside import set_aside
from sweeper.files.rules import TrialUses, in_a_check
from sweeper.files.uses import uses_from_json
from sweeper.replay.lines import line_of_argument
from sweeper.replay.reports import (
    CheckReport,
    DataDigests,
    Estimate,
    Finding,
    Lengths,
    Line,
    RehearsalReport,
    Timed,
    ranked,
)
from sweeper.run.launch.launchers import WarmServer, choose_launcher
from sweeper.run.launch.sources import load_source, target_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import Failed, Rehearsal
from sweeper.run.rehearsals import Drawn, rehearse, validation_compares
from sweeper.run.replays import ReplayDiedError, Replayed, ReplayOrder, ReplayProcess, run_again
from sweeper.search.spaces import check_grid
from sweeper.search.spec import SamplerSpec, needs_definition, search_spec
from sweeper.support.calling import wait_for_all
from sweeper.support.paths import scratch_directory

_COMPARED = 3
"""Maximum number of trials whose files are compared with those of trial 0."""


def estimate(
    settings: StudySettings,
    report: RehearsalReport,
    *,
    workers: int,
    startup_seconds: float,
    checkpoint_bytes: int,
) -> Estimate | None:
    """Return estimates of the study's time, memory and disk; None if no step was timed.

    Args:
        settings: The study's.
        report: Of a rehearsal.
        workers: Trials side by side.
        startup_seconds: From a trial's launch to its first step.
        checkpoint_bytes: Size of one checkpoint.
    """
    timed, lengths = report.timed, report.lengths
    if timed is None or lengths is None:
        return None
    step = timed.seconds / max(1, timed.steps)
    if report.listening:
        # Callbacks that listen to every batch end the blocks of steps, and take time themselves.
        step = max(step, report.follow_seconds / max(1, report.end))
    validation = _validation_seconds(timed, lengths)
    steps = lengths.steps
    trial = study = None
    if steps is not None:
        trial = startup_seconds + settings.epochs * steps * step
        trial += report.validations * validation
        study = trial * math.ceil(settings.trials / workers)
    kept = checkpoints_kept(settings, steps, trial)
    return Estimate(
        steps_per_epoch=steps,
        seconds_per_step=step,
        validation_seconds=validation,
        startup_seconds=startup_seconds,
        trial_seconds=trial,
        study_seconds=study,
        workers=workers,
        trial_bytes=timed.memory,
        memory_bytes=timed.memory * min(workers, settings.trials),
        checkpoint_bytes=checkpoint_bytes,
        checkpoints_kept=kept,
        disk_bytes=checkpoint_bytes * kept * settings.trials,
    )


def checkpoints_kept(
    settings: StudySettings, steps_per_epoch: int | None, trial_seconds: float | None
) -> int:
    """Return the maximum number of checkpoints that a finished trial keeps."""
    taken = _taken(settings, steps_per_epoch, trial_seconds)
    keep: Mapping[str, Any] = settings.keep
    if keep.get("when") is not None:
        wanted: float = math.inf
    else:
        wanted = keep.get("last", 1) + keep.get("best", 0)
        if keep.get("every_epochs") is not None:
            wanted += settings.epochs // keep["every_epochs"]
        if keep.get("every_hours") is not None:
            wanted += (trial_seconds or 0.0) // (3600 * keep["every_hours"])
    most = min(wanted, taken, keep.get("at_most") or math.inf)
    return 1 if math.isinf(most) else max(1, int(most))


def _taken(
    settings: StudySettings, steps_per_epoch: int | None, trial_seconds: float | None
) -> float:
    every = settings.checkpoint_every
    if every == "epoch":
        return settings.epochs
    if not isinstance(every, Mapping):
        return math.inf
    counts = [1.0]
    if every.get("epochs") is not None:
        counts.append(math.ceil(settings.epochs / every["epochs"]))
    if every.get("steps") is not None and steps_per_epoch is not None:
        counts.append(math.ceil(settings.epochs * steps_per_epoch / every["steps"]))
    if every.get("seconds") is not None and trial_seconds is not None:
        counts.append(math.ceil(trial_seconds / every["seconds"]))
    return sum(counts)


def _validation_seconds(timed: Timed, lengths: Lengths) -> float:
    ran, seconds = timed.validation_batches, timed.validation_seconds
    if not ran or not lengths.validation_batches:
        return seconds
    return seconds * max(1.0, lengths.validation_batches / ran)


def check_study(
    target: str, *, workers: int = 2, tell: Callable[[str], None] = lambda _: None
) -> CheckReport:
    """Check the study that ``target`` names.

    Args:
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``.
        workers: Parallel trials, for the estimates.
        tell: Called with a description of each activity.

    Raises:
        UsageError, DefinitionError: There is no such study, or it cannot be run.
        ExecutionError: A process could not be started.
    """
    began = time.monotonic()
    with (
        scratch_directory("check") as directory,
        _servers(target) as opened,
    ):
        check = _Check(opened, Path(directory), tell)
        tell("building the trial and training some steps, twice")
        check.rehearse()
        report = check.report(workers)
    seconds = {**(report.seconds or {}), "total": time.monotonic() - began}
    return dataclasses.replace(report, seconds=seconds)


@dataclass(frozen=True)
class _Opened:
    """A loaded study, with one launcher for each lane."""

    settings: StudySettings
    search: SamplerSpec
    launchers: tuple[Launcher, Launcher]
    cannot_fork: str
    imported_by_trials: str
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
            check_grid(settings.grid, settings.trials // settings.repeats)
        definition: StudyDefinition | None = None
        if needs_definition(settings):
            definition = load_source(source)
        search = search_spec(settings, definition)
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
            search,
            (launchers[0], launchers[1]),
            loaded.cannot_fork,
            loaded.imported_by_trials,
            file,
        )


class _Check:
    def __init__(self, opened: _Opened, directory: Path, tell: Callable[[str], None]) -> None:
        self._opened = opened
        self._settings = opened.settings
        self._directory = directory
        self._tell = tell
        self._stopping = threading.Event()
        self._trained = (Replayed(), Replayed())
        self._read: dict[str, Replayed] = {}
        self._validation: Finding | None = None
        self._resumed: tuple[Resumed, ...] = ()
        self._meets_in_files = False
        self._files: list[Finding] = []
        self._created: set[str] = set()
        self._alone = threading.Lock()

    def rehearse(self) -> None:
        """Run both lanes to their ends.

        Raises:
            SweeperError: A process could not be started.
        """
        first = self._train(0)
        self._compare_files(first)
        with ThreadPoolExecutor(2) as pool:
            try:
                trained = pool.submit(self._train, 1)
                wait_for_all([trained])
                self._trained = (first, trained.result())
                if not all(report.complete for report in self._reports()):
                    return
                reading = pool.submit(self._read_trials)
                killed = [
                    pool.submit(self._interrupt, interruption, lane)
                    for lane, interruption in zip((1, 0), self._interruptions(), strict=False)
                ]
                together = pool.submit(self._rehearse, 1, "together", Rehearsal("together"))
                wait_for_all([reading, *killed, together])
                reading.result()
                self._read["together"] = together.result()
                self._resumed = tuple(each.result() for each in killed)
            except BaseException:
                self._stopping.set()
                raise

    def _reports(self) -> list[RehearsalReport]:
        """Return the reports of the processes that trained; fewer than two where one died."""
        return [each.report for each in self._trained if each.report is not None]

    def report(self, workers: int) -> CheckReport:
        """Return the report of both lanes."""
        trained = self._reports()
        alone = {name: each for name, each in self._read.items() if name != "together"}
        findings = [*self._of_settings(), *self._files]
        for outcome in (*self._trained, *alone.values()):
            findings += () if outcome.report is None else outcome.report.findings
            findings += self._of_death(outcome)
        judgement = Judgement()
        if len(trained) == 2:
            judgement = judge_runs(
                trained[0],
                trained[1],
                (self._data_of("trial 0"), self._data_of("together")),
                deterministic=self._settings.deterministic,
            )
            self._judge_more(trained, judgement)
            self._judge_trials(trained[0], judgement)
        findings += judgement.findings
        metrics = next((report.metrics for report in trained if report.metrics), ())
        findings += self._of_objectives(metrics, trained)
        known = [*trained, *filter(None, map(self._report_of, self._read))]
        return CheckReport(
            study=self._settings.name,
            findings=ranked(findings),
            held=(*self._held(trained, findings), *judgement.held),
            metrics=metrics,
            estimate=self._estimate(workers),
            seconds=self._seconds(known),
            steps=sum(report.steps for report in known),
            inline="" if any(each.level == "error" for each in findings) else self._inline(),
        )

    def _report_of(self, name: str) -> RehearsalReport | None:
        return self._read.get(name, Replayed()).report

    def _data_of(self, name: str) -> DataDigests | None:
        report = self._report_of(name)
        return None if report is None else report.data

    def _judge_trials(self, trained: RehearsalReport, judgement: Judgement) -> None:
        second = self._report_of("trial 1")
        if second is None or not judgement.repeats:
            return
        judge_trials(trained, second, judgement)
        judgement.findings += () if self._validation is None else (self._validation,)

    def _inline(self) -> str:
        """Return what would make trials in one process dependent."""
        outcome, alone = self._read.get("together"), self._report_of("trial 1")
        report = None if outcome is None else outcome.report
        if report is None:
            return ""
        shared = [finding for finding in report.findings if finding.level == "error"]
        if shared:
            first, *more = shared
            at = "" if first.line is None else f"{first.line}: "
            return f"{at}{first.message}{f' (and {len(more)} more)' if more else ''}"
        if alone is None or not report.complete:
            return ""
        for what, factory, differs in (
            ("weights", report.code.model, alone.built != report.built),
            ("data", report.code.data, alone.data != report.later_data),
        ):
            if differs:
                at = "" if factory.line is None else f"{factory.line}: "
                return (
                    f"{at}trial 1 begins with different {what} if trial 0 was built before it: "
                    f"{factory.name} uses state that an earlier call left behind; make everything "
                    "inside the factory"
                )
        return ""

    def _estimate(self, workers: int) -> Estimate | None:
        report = self._trained[1].report
        if report is None:
            return None
        return estimate(
            self._settings,
            report,
            workers=workers,
            startup_seconds=self._startup_seconds(report),
            checkpoint_bytes=self._checkpoint_bytes(report),
        )

    def _train(self, lane: int) -> Replayed:
        return self._rehearse(lane, f"train-{lane}", Rehearsal("train"))

    def _read_trials(self) -> None:
        """Build two trials in separate processes; compare their validation data."""
        for number in (0, 1):
            name = f"trial {number}"
            self._read[name] = self._rehearse(0, name, Rehearsal("read", number))
        self._validation = validation_compares(
            self._report_of("trial 0"), self._report_of("trial 1"), self._build_alike
        )

    def _build_alike(self, rehearsal: Rehearsal) -> RehearsalReport | None:
        alike = self._read["trial 1 like 0"] = self._rehearse(0, "alike", rehearsal)
        return alike.report

    def _rehearse(self, lane: int, directory: str, rehearsal: Rehearsal) -> Replayed:
        with self._apart():
            replayed = rehearse(
                self._opened.launchers[lane],
                self._settings,
                self._directory / directory,
                rehearsal,
                self._opened.search,
                stopping=self._stopping,
            )
            self._set_aside(replayed, directory)
        return replayed

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Context manager of a process that must not meet another one in the user's files."""
        with self._alone if self._meets_in_files else contextlib.nullcontext():
            yield

    def _set_aside(self, replayed: Replayed, directory: str) -> None:
        """Set aside what a process created, so that the next one begins as the first one did."""
        # A killed process reports nothing, so what earlier ones created is looked for, too.
        self._created |= {
            use.path for use in uses_from_json(replayed.files) if use.wrote and not use.existed
        }
        set_aside(self._created, self._directory / "aside" / directory)

    def _compare_files(self, first: Replayed) -> None:
        """Compare what trial 0 wrote outside of its directory with what other trials write there.

        Trials 1 to `_COMPARED` are trained only if trial 0 wrote there. None of them is offered the files of
        another. Several are needed because two trials may have the decisive parameter in common.
        """
        uses = uses_from_json(first.files)
        self._meets_in_files = any(use.wrote for use in uses)
        if not self._meets_in_files:
            return
        ours = TrialUses("trial 0", uses)
        kept = {use.path for use in uses if use.existed}
        for number in range(
            1, min(_COMPARED, self._settings.trials // self._settings.repeats - 1) + 1
        ):
            self._tell(f"training trial {number} without the files that trial 0 wrote")
            other = self._rehearse(0, f"files-{number}", Rehearsal("train", number))
            theirs = TrialUses(f"trial {number}", uses_from_json(other.files))
            found = list(in_a_check(ours, theirs, left=kept))
            self._files = [
                Finding("error" if each.level == "error" else "note", "files", each.message)
                for each in found
            ]
            if any(each.level == "error" for each in found):
                return

    def _interruptions(self) -> tuple[Interruption, ...]:
        report = self._trained[1].report
        if report is None or not report.complete or report.end < 2:
            return ()
        self._tell("killing the trial at several steps, and resuming it")
        return interruptions(report.end, report.epoch_steps)

    def _interrupt(self, interruption: Interruption, lane: int) -> Resumed:
        report = self._trained[1].report
        if report is None or report.lengths is None:
            msg = "no trial could be rehearsed, so none was killed and resumed"
            raise ValueError(msg)
        end = (report.end, report.epochs)
        order = ReplayOrder(
            settings=self._settings,
            number=0,
            answers=Drawn(self._opened.search),
            checkpoints=(end,),
            kills=interruption.kills,
            ends_at=end,
            lengths=report.lengths,
            when_stopped="the check was stopped",
        )
        first, other = self._opened.launchers[lane], self._opened.launchers[1 - lane]
        directory = self._directory / interruption.directory
        try:
            with self._apart():
                replayed = run_again(
                    order, (first, other), directory, lambda _: None, self._stopping
                )
                self._set_aside(replayed, interruption.directory)
        except ReplayDiedError as died:
            return Resumed(interruption, died.replayed, report.end, died.how)
        return Resumed(interruption, replayed, report.end)

    def _judge_more(self, reports: list[RehearsalReport], judgement: Judgement) -> None:
        paths = [Path(each.checkpoint) for each in reports if each.checkpoint is not None]
        if not judgement.repeats or len(paths) < len(reports):
            return
        authors = reports[0].code
        whole, second = paths
        objectives = [objective.name for objective in self._settings.objectives]
        anyway = judge_ends(whole, second, authors, objectives, judgement)
        judge_interruptions(whole, self._resumed, anyway, authors, judgement, objectives=objectives)

    def _of_settings(self) -> Iterator[Finding]:
        settings = self._settings
        if not settings.deterministic:
            yield Finding(
                "warning",
                "settings",
                "deterministic=False: kernels may give different bits each time, so exactness is "
                "not promised, and a resumed or repeated trial may end with another result",
                self._argument("deterministic"),
            )
        if self._opened.cannot_fork:
            yield Finding(
                "note",
                "settings",
                "every trial starts a new Python, which takes some seconds, because "
                f"{self._opened.cannot_fork}",
                self._argument("name"),
            )
        elif self._opened.imported_by_trials:
            yield Finding(
                "note",
                "settings",
                "every trial imports the study in its own process, because "
                f"{self._opened.imported_by_trials}; the code at the top of the file runs again "
                "for each trial",
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
                    f"the reported metrics are {', '.join(map(repr, metrics))}",
                    self._argument("objective"),
                )

    def _of_death(self, outcome: Replayed) -> Iterator[Finding]:
        if outcome.report is not None:
            return
        if isinstance(outcome.end, Failed):
            shown = f"{outcome.stage} failed: {outcome.end.error}"
        else:
            how = "ended" if outcome.status is None else outcome.status.describe()
            shown = f"the process of the trial {how} while {outcome.stage}"
        yield Finding("error", "build", shown, self._argument("model"))

    def _held(self, trained: list[RehearsalReport], findings: list[Finding]) -> Iterator[str]:
        wrong = {finding.check for finding in findings if finding.level == "error"}
        if not trained:
            return
        report = trained[0]
        if "independence" not in wrong and report.owned is not None:
            yield (
                f"a trial begins anew: its factories make its model, optimizer and callbacks "
                f"({report.owned} objects that training changes)"
            )
        if "capture" not in wrong and report.trace is not None:
            yield "everything that training changes can be captured"
        names = [objective.name for objective in self._settings.objectives]
        if "objective" not in wrong and set(names) <= set(report.metrics):
            yield f"the objective {', '.join(map(repr, names))} is among the metrics of an epoch"

    def _argument(self, argument: str) -> Line | None:
        if self._opened.file is None:
            return None
        return line_of_argument(self._opened.file, self._settings.name, argument)

    def _processes(self) -> list[tuple[ReplayProcess, int]]:
        """Return the processes that were killed or resumed, and the steps that each ran."""
        return [
            pair
            for each in self._resumed
            for pair in zip(each.replayed.processes, each.steps, strict=False)
        ]

    def _startup_seconds(self, report: RehearsalReport) -> float:
        started = [process.started_after for process, _ in self._processes()]
        known = [seconds for seconds in started if seconds is not None]
        return known[0] if known else report.seconds.startup

    def _checkpoint_bytes(self, report: RehearsalReport) -> int:
        for process, _ in self._processes():
            if process.bytes:
                return process.bytes
        if report.checkpoint is None:
            return 0
        return sum(file.stat().st_size for file in Path(report.checkpoint).iterdir())

    def _seconds(self, reports: list[RehearsalReport]) -> dict[str, float]:
        """Return the seconds of each part of the check, summed over the processes."""
        seconds = {
            name: sum(getattr(report.seconds, name) for report in reports)
            for name in ("startup", "steps", "work")
        }
        timed = None if self._trained[1].report is None else self._trained[1].report.timed
        for process, steps in self._processes():
            if process.started_after is not None and timed is not None:
                seconds["startup"] += process.started_after
                seconds["work"] += process.seconds - process.started_after
                seconds["steps"] += steps * timed.seconds / max(1, timed.steps)
        return seconds
