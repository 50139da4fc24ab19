"""`sweeper check`: two replays of the study's first trial, shortened, and their comparison.

The first replay trains `SHORT_EPOCHS` short epochs, with every hook and every validation. The second
is killed after a checkpoint in the middle of its second epoch, once that epoch has ended, and resumed
in a fresh process. So state in the process is lost, and state in a file is changed twice. What differs
between the two at a checkpoint before the kill is nondeterministic; what differs after it was lost.

Each replay has its own fork server, so that they differ in addresses and orders of sets, as a run and its
resume do. `sweeper.run.replays` compares them, as `verify` and audits do. Where something differs
after the kill, a third replay, killed in the same way, shows whether the trial repeats. No database is opened,
every file of the check is below a temporary directory, and what its trials change elsewhere is undone.

If the first trial leaves something outside of its directory, another one is trained with it, and without. It is the one
whose parameters differ from the first trial's the most, because two trials may have the decisive one in common.

The estimates of time and disk are upper bounds: a trial that stops early takes less time, and retention rules
with a metric may keep fewer checkpoints.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.checks.disk import Disk
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.definition.definition import StudySettings
from sweeper.definition.loading import split_target
from sweeper.errors import Interrupted
from sweeper.files.uses import CURE_OR_BEFORE, uses_from_json
from sweeper.records.findings import LEVELS, Finding, Level, Line, ranked
from sweeper.records.printing import JsonRecord, PrintedRecord, counted, json_fields
from sweeper.replay.comparison import errors, line_of_differences, listed, notes_on_excused
from sweeper.replay.reports import line_of_argument
from sweeper.run.launch.launchers import StudyCode, WarmServer
from sweeper.run.launch.server_process import ServerProcess
from sweeper.run.launch.sources import load_source, target_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import Failed, Finished, StudySource
from sweeper.run.replays import (
    Answer,
    ComparedReplay,
    Kill,
    Reference,
    ReplayComparison,
    ReplayDiedError,
    Replayed,
    ReplayOrder,
    run_again,
)
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import check_grid
from sweeper.search.spec import SamplerSpec, needs_definition, search_spec
from sweeper.support.paths import roots_of, scratch_directory
from sweeper.views.formats import one_line, size_text, time_text


@dataclass(frozen=True, slots=True)
class Estimate(JsonRecord):
    """Estimate of the study's time and disk, from the replays of its first trial.

    Attributes:
        steps_per_epoch: Steps of an epoch; None if unknown, and then no time is estimated.
        epoch_seconds: Seconds of a whole epoch with its validation; None if unknown.
        startup_seconds: Seconds to start a trial: its process, building, tracing.
        trial_seconds: Seconds of a trial with all epochs.
        study_seconds: Seconds of all trials, ``workers`` at a time.
        workers: Parallel trials.
        checkpoint_bytes: Size of one checkpoint.
        checkpoints_kept: Maximum number of kept checkpoints of a trial.
        disk_bytes: Maximum size of all checkpoints of all trials.
    """

    steps_per_epoch: int | None
    epoch_seconds: float | None
    startup_seconds: float
    trial_seconds: float | None
    study_seconds: float | None
    workers: int
    checkpoint_bytes: int
    checkpoints_kept: int
    disk_bytes: int

    def __str__(self) -> str:
        time = "unknown: how many steps an epoch has, only its end tells"
        if self.steps_per_epoch is not None:
            time = (
                f"about {time_text(self.study_seconds)} with {counted(self.workers, 'worker')}, "
                f"{time_text(self.trial_seconds)} a trial ({time_text(self.epoch_seconds)} an epoch of "
                f"{self.steps_per_epoch:,} steps, {time_text(self.startup_seconds)} to start)"
            )
        disk = (
            f"at most {size_text(self.disk_bytes)}: {size_text(self.checkpoint_bytes)} a "
            f"checkpoint, {self.checkpoints_kept} kept of each trial"
        )
        return f"time     {time}\ndisk     {disk}"


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(PrintedRecord):
    """Report of one check.

    Attributes:
        findings: Errors first.
        held: The promises that hold, a sentence each.
        metrics: Names of the metrics of an epoch; empty if unknown.
        estimate: The estimate; None if no epoch could be run.
        seconds: ``"total"``: duration of the check.
        steps: Training steps that were run.
        removed: What the check's trials made outside of their directories and was removed.
    """

    study: str
    findings: tuple[Finding, ...]
    held: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    estimate: Estimate | None = None
    seconds: Mapping[str, float] | None = None
    steps: int = 0
    removed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether there is no error among the findings."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def lacks_packages(self) -> bool:
        """Return whether every error is a missing package, so that nothing was checked."""
        errors = [finding for finding in self.findings if finding.level == "error"]
        return bool(errors) and all(finding.subject == "installation" for finding in errors)

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def verdict(self) -> str:
        if self.lacks_packages:
            return "cannot run: a package is missing"
        return "holds" if self.holds else "a promise does not hold"

    def __str__(self) -> str:
        counts = [counted(self.count(level), level) for level in LEVELS if self.count(level)]
        parts = [f"{self.study}: {self.verdict}, {', '.join(counts) or 'nothing found'}"]
        parts += map(str, self.findings)
        if self.held:
            parts.append("\n".join(f"holds    {one_line(promise)}" for promise in self.held))
        if self.metrics:
            parts.append(f"metrics  {', '.join(self.metrics)}")
        if self.estimate is not None:
            parts.append(str(self.estimate))
        if self.removed:
            parts.append(f"removed  {', '.join(self.removed)}: made by the check's trials")
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        fields = json_fields(self, "study", "holds", "findings", "held", "metrics")
        return {**fields, **json_fields(self, "estimate", "seconds", "steps", "removed")}


SHORT_EPOCHS = 3
"""Epochs of a shortened trial, enough to lose, and then to use, state that is used only at the end of an epoch."""

_CANDIDATES = 16
"""Number of trials among which the one is chosen that is trained with what trial 0 left."""


def kill_of(end: int, steps: int) -> Kill | None:
    """Return the kill of a trial that ends at step ``end``, with epochs of ``steps``; None if too short.

    It follows a checkpoint in the middle of the second epoch, after that epoch's end.
    """
    if end < 2:
        return None
    if end <= steps:
        return Kill(end // 2, end // 2 + 1)
    return Kill(min(steps + steps // 2, end - 1), min(end, 2 * steps + 1))


def _drawing(spec: SamplerSpec, number: int) -> Answer:
    """Return a function that draws parameters of one of a study's first trials, without a database."""

    @functools.cache
    def session() -> SearchSession:
        # No trial of a check may wait for another one's result.
        window = None if spec.window is None else max(number + 1, spec.window)
        return open_search(replace(spec, window=window, pruner=None), number)

    return lambda name, distribution: session().suggest(name, distribution)


def check_study(
    source: StudySource | str, *, workers: int = 2, notify: Callable[[str], None] = lambda _: None
) -> CheckReport:
    """Check a study.

    Args:
        source: The study's definition, as its processes get it, or the name of its file or module:
            ``FILE[:NAME]`` or ``package.module[:NAME]``.
        workers: Parallel trials, for the estimates.
        notify: Called with a description of each activity.

    Raises:
        UsageError, DefinitionError: There is no such study, or it cannot be run.
        ExecutionError: A process could not be started.
        Interrupted: SIGINT was received.
    """
    started = time.monotonic()
    source = target_source(source) if isinstance(source, str) else source
    file = Path(split_target(source.target)[0]).resolve()
    disk = Disk(roots_of(str(file)), notify)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_reporting_interrupts())
        stack.enter_context(disk)
        directory = Path(stack.enter_context(scratch_directory("check")))
        processes = [stack.enter_context(ServerProcess()) for _ in range(2)]
        servers = []
        imports = []
        # One after the other, because the import may make a file, which the second one then finds.
        for process in processes:
            servers.append(stack.enter_context(contextlib.closing(WarmServer(source, process))))
            imports.append(servers[-1].loaded())
        loaded = imports[0]
        settings = loaded.settings
        definition = load_source(source) if needs_definition(settings) else None
        disk.imported()
        if settings.sampler == "grid":
            check_grid(settings.grid, settings.trials // settings.repeats)
        for server in servers:
            server.choose_isolation(loaded, "auto")
        check = _Check(
            loaded,
            search_spec(settings, definition),
            servers,
            str(file) if file.is_file() else "",
            directory,
            notify,
            disk,
        )
        report = check.report(workers)
    noted = [Finding("note", "files", note) for note in disk.notes]
    return replace(
        report,
        findings=(*report.findings, *noted),
        removed=tuple(disk.removed),
        seconds={"total": time.monotonic() - started},
    )


@contextlib.contextmanager
def _reporting_interrupts() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "the check was stopped; its trials and what they made were removed, and what was there is back"
        ) from None


@dataclass
class _Check:
    """Check of a loaded study, with the launchers of two servers."""

    loaded: StudyCode
    search: SamplerSpec
    launchers: Sequence[Launcher]
    file: str
    directory: Path
    notify: Callable[[str], None]
    disk: Disk
    stopping: threading.Event = field(default_factory=threading.Event)
    asked: dict[str, Distribution] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def settings(self) -> StudySettings:
        return self.loaded.settings

    @property
    def _objectives(self) -> list[str]:
        return [objective.name for objective in self.settings.objectives]

    def report(self, workers: int) -> CheckReport:
        """Run both replays, and return the report."""
        if not self.settings.deterministic:
            message = (
                "deterministic=False: kernels may give different bits each time, so exactness is "
                "not promised, and a resumed or repeated trial may end with another result"
            )
            self._find("warning", "settings", message, self._argument("deterministic"))
        starts = {
            "starts a new Python, which takes some seconds": self.loaded.cannot_fork,
            "imports the study itself, which runs the top of the file": self.loaded.imported_by_trials,
        }
        for start, why in starts.items():
            if why:
                message = f"every trial {start}, because {why}"
                self._find("note", "settings", message, self._argument("name"))
        self.notify("training the first trial for some short epochs")
        undisturbed = self._train(0, "first")
        self._report(undisturbed)
        replayed = [undisturbed]
        promises = []
        if not isinstance(undisturbed.end, Failed) and undisturbed.end is not None:
            self._look_at_files(undisturbed)
            self.disk.undo()
            promises += [
                "a trial starts from scratch: its factories make its model, optimizer and callbacks",
                "everything that training changes can be captured",
            ]
            names = self._objectives
            if any(set(names) <= set(epoch.metrics) for epoch in undisturbed.epochs.values()):
                listed = ", ".join(map(repr, names))
                ways = " and ".join(
                    f"{objective.direction}d" for objective in self.settings.objectives
                )
                promises.append(f"the objective {listed}, {ways}, is among the metrics of an epoch")
            kill = kill_of(getattr(undisturbed.end, "step", 0), undisturbed.steps_per_epoch)
            compared = self._resume(undisturbed, kill)
            if compared is not None:
                level: Level = "error" if self.settings.deterministic else "warning"
                findings, replay_promises = judge(undisturbed, compared, kill, level)
                self.findings += findings
                promises += replay_promises
                replayed += [replay for replay in (compared.replayed, compared.again) if replay]
        return CheckReport(
            study=self.settings.name,
            findings=tuple(ranked(dict.fromkeys(self.findings))),
            held=tuple(promises),
            metrics=tuple(
                dict.fromkeys(n for epoch in undisturbed.epochs.values() for n in epoch.metrics)
            ),
            estimate=estimate(self.settings, undisturbed, workers=workers),
            steps=sum(getattr(replay.end, "step", 0) for replay in replayed),
        )

    def _find(self, level: Level, subject: str, message: str, line: Line | None) -> None:
        self.findings.append(Finding(level, subject, message, line))

    def _order(self, number: int) -> ReplayOrder:
        settings = self.settings
        draw = _drawing(self.search, number)

        def answer(name: str, distribution: Distribution) -> CategoricalChoice:
            self.asked.setdefault(name, distribution)
            return draw(name, distribution)

        return ReplayOrder(
            settings=replace(settings, epochs=min(SHORT_EPOCHS, settings.epochs), budget=None),
            number=settings.repeating.number(number, 0),
            answer=answer,
            checkpoints=None,
            short=True,
        )

    def _train(self, number: int, directory: str) -> Replayed:
        order = self._order(number)
        below = self.directory / directory
        try:
            return run_again(order, self.launchers[:1], below, lambda _: None, self.stopping)
        except ReplayDiedError as died:
            if not isinstance(died.replayed.end, Failed):
                stage = (
                    "after its factories ran" if died.replayed.user_objects else "in its factories"
                )
                message = f"the process of trial {number} {died.how} {stage}"
                self._find("error", "build", message, self._argument("model"))
            return died.replayed

    def _report(self, replayed: Replayed) -> None:
        if isinstance(replayed.end, Failed):
            self.findings.append(finding_of_failure(replayed.end, self._argument))
        for message in replayed.warnings[False]:
            self._find("warning", "independence", message, self._argument("model"))
        for message in replayed.warnings[True]:
            self._find("note", "capture", message, None)

    def _look_at_files(self, first: Replayed) -> None:
        """If trial 0 left something outside of its directory, train another trial with it, and without."""
        paths = self.disk.left()
        number = self._most_different()
        if not paths or number is None:
            return
        self.notify(f"training trial {number} with what trial 0 left, and without")
        beside = self._train(number, "with")
        self.disk.undo()
        alone = self._train(number, "without")
        self._report(alone)
        if _outcome(beside) == _outcome(alone):
            return
        self.disk.undo()
        if _outcome(self._train(number, "again")) != _outcome(alone):
            return  # the trial does not repeat at all, which the next replay reports
        self._find("error", "files", _dependence(first, beside, alone, paths, number), None)

    def _most_different(self) -> int | None:
        """Return the number of the trial whose parameters differ the most from those of trial 0; None without one."""
        numbers = range(min(self.settings.trials // self.settings.repeats, _CANDIDATES))
        draws = [_drawing(self.search, number) for number in numbers]

        def differing(number: int) -> int:
            return sum(
                draws[number](*parameter) != draws[0](*parameter)
                for parameter in self.asked.items()
            )

        return max(numbers[1:], key=differing, default=None)

    def _resume(self, undisturbed: Replayed, kill: Kill | None) -> ReplayComparison | None:
        """Run the replay that is killed and resumed; None if it could not be compared."""
        activity = "training it again"
        if kill is not None:
            activity += f", killed after step {kill.after} and resumed"
        self.notify(activity)

        def prepare(_directory: Path) -> ReplayOrder:
            self.disk.undo()
            return replace(self._order(0), kill=kill)

        replay = ComparedReplay(
            prepare=prepare,
            directory=self.directory / "resumed",
            reference=Reference(
                undisturbed.checkpoints,
                undisturbed.directory,
                undisturbed.metrics,
                undisturbed.results(self._objectives),
            ),
            launchers=self.launchers[::-1],
            stopping=self.stopping,
        )
        try:
            compared = replay.run()
        except ReplayDiedError as died:
            message = (
                f"the resumed trial did not reach step {getattr(undisturbed.end, 'step', 0)}, which the "
                f"same trial without a kill reached: its process {died.how}"
            )
            end = died.replayed.end
            line = end.line if isinstance(end, Failed) else None
            self._find("error", "resume", message, line or self._argument("model"))
            return None
        failed = compared.replayed.end
        if isinstance(failed, Failed):
            action = "resumed" if compared.replayed.processes > 1 else "trained again"
            message = f"the trial that was {action} failed: {failed.error}"
            self._find("error", "resume", message, failed.line or self._argument("model"))
            return None
        return compared

    def _argument(self, argument: str) -> Line | None:
        return line_of_argument(self.file, self.settings.name, argument)


def _outcome(replayed: Replayed) -> tuple[int, str, str]:
    """Return what shows whether two trainings are the same one."""
    match replayed.end:
        case Failed() as failed:
            return 0, failed.error, ""
        case Finished() as finished:
            return finished.step, repr(finished.value), finished.digest
    return 0, "", ""


def _ending(replayed: Replayed) -> str:
    """Describe the end of a training: its error, or its value."""
    if isinstance(replayed.end, Failed):
        return f"fails ({replayed.end.error})"
    return f"ends with {_outcome(replayed)[1]}"


def _dependence(
    first: Replayed, beside: Replayed, alone: Replayed, paths: set[str], number: int
) -> str:
    """Return the message about a trial that is another one with what trial 0 left."""
    uses = uses_from_json(beside.files)
    read = {use.path: use for use in uses if use.read_digest or use.asked}
    wrote = {use.path: use for use in uses_from_json(first.files)}
    decisive = sorted(paths & read.keys()) or sorted(paths)
    names = []
    for path in decisive[:_SHOWN]:
        lines = []
        if path in wrote and wrote[path].wrote_at:
            lines.append(f"written by {wrote[path].wrote_at}")
        if path in read and read[path].read_at:
            lines.append(f"read by {read[path].read_at}")
        name = path.removeprefix(f"{Path.cwd()}/")
        names.append(f"{name} ({', '.join(lines)})" if lines else name)
    more = len(decisive) - _SHOWN
    files = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    ends = [_ending(replay) for replay in (beside, alone)]
    same = "" if ends[0] != ends[1] else " and other weights"
    return (
        f"trial {number} depends on what trial 0 left in {files}: with it, it {ends[0]}, and without it "
        f"{ends[1]}{same}; {CURE_OR_BEFORE}"
    )


def estimate(settings: StudySettings, replay: Replayed, *, workers: int) -> Estimate | None:
    """Return estimates of the study's time and disk, from a shortened trial; None if no epoch ended."""
    lengths = replay.lengths
    starts = replay.started_after
    if not replay.epoch_seconds or starts is None or lengths is None:
        return None
    # TensorFlow traces the steps of the first epoch.
    seconds = replay.epoch_seconds[1:] or replay.epoch_seconds
    epoch = trial = study = None
    if lengths.steps is not None:
        epoch = lengths.times * sum(seconds) / len(seconds)
        trial = starts + settings.epochs * epoch
        study = trial * math.ceil(settings.trials / workers)
    checkpoints = checkpoints_kept(settings, lengths.steps, trial)
    return Estimate(
        steps_per_epoch=lengths.steps,
        epoch_seconds=epoch,
        startup_seconds=starts,
        trial_seconds=trial,
        study_seconds=study,
        workers=workers,
        checkpoint_bytes=replay.bytes,
        checkpoints_kept=checkpoints,
        disk_bytes=replay.bytes * checkpoints * settings.trials,
    )


def checkpoints_kept(
    settings: StudySettings, steps_per_epoch: int | None, trial_seconds: float | None
) -> int:
    """Return the maximum number of checkpoints that a finished trial keeps."""
    epochs = settings.epochs
    seconds = trial_seconds or 0.0
    every = settings.checkpoint_every
    keep = settings.keep
    taken = math.inf if every == "auto" else epochs
    if isinstance(every, Mapping):
        lengths = {"epochs": epochs, "steps": epochs * (steps_per_epoch or 0), "seconds": seconds}
        intervals = {unit: interval for unit in lengths if (interval := every.get(unit))}
        taken = 1 + sum(math.ceil(lengths[unit] / interval) for unit, interval in intervals.items())
    by_rules = math.inf
    if keep.get("when") is None:
        by_epochs = epochs // (keep.get("every_epochs") or math.inf)
        by_hours = seconds // (3600 * (keep.get("every_hours") or math.inf))
        by_rules = keep.get("last", 1) + keep.get("best", 0) + by_epochs + by_hours
    most = min(by_rules, taken, keep.get("at_most") or math.inf)
    return 1 if math.isinf(most) else max(1, int(most))


_SHOWN = 3
"""Files that a message names."""

_SUBJECTS = {
    "DataError": ("data", "data"),
    "IndependenceError": ("independence", "model"),
    "ObjectiveError": ("objective", "objective"),
    "UncapturableError": ("capture", "callbacks"),
}
"""Subject and argument of `Study` of an error that ends a trial, by the error's type."""

_AGAIN = (
    "so a resumed, repeated or verified trial would have another result; draw random numbers "
    "from trial.seed or from the global generators, which are seeded, and do not read the clock"
)


def finding_of_failure(failed: Failed, argument: Callable[[str], Line | None]) -> Finding:
    """Return the finding for an error that ended a trial.

    ``argument`` returns the line of an argument of `Study`, for an error of no line of the user's.
    """
    subject, where = _SUBJECTS.get(failed.error_class, ("build", "model"))
    message = failed.error
    if failed.error_class in _SUBJECTS:
        message = message.removeprefix(f"{failed.error_class}: ")
    elif failed.lacks_package:
        subject = "installation"
    return Finding("error", subject, message, failed.line or argument(where))


def judge(
    undisturbed: Replayed, compared: ReplayComparison, kill: Kill | None, level: Level
) -> tuple[list[Finding], list[str]]:
    """Return findings on whether a trial repeats and survives a kill, and the promises that hold.

    ``compared`` is the comparison of the first replay with the second, and ``level`` that of a difference.
    """
    user_objects = undisturbed.user_objects
    if user_objects is None:
        raise ValueError("the first replay did not build its trial")
    notes = notes_on_excused(compared.differences, user_objects)
    if undisturbed.weights != compared.replayed.weights:
        message = (
            f"the model factory {user_objects.model.name} returned different initial weights in a "
            f"second run of the same trial with the same seed; {_AGAIN}"
        )
        return [*notes, Finding(level, "seeds", message, user_objects.model.line)], []
    steps = getattr(undisturbed.end, "step", 0)
    by_step = {
        step: errors(compared.checkpoints[step, epoch])
        for step, epoch in sorted(compared.checkpoints)
    }
    first = next((step for step, differences in by_step.items() if differences), None)
    differences = compared.end if first is None else by_step[first]
    if differences:
        suspects = ", ".join(
            user_objects.users or (str(user_objects.data), str(user_objects.model))
        )
        step = steps if first is None else first
        subject = "resume"
        if kill is None or step <= kill.checkpoint or compared.repeats is False:
            subject = "determinism"
            message = (
                "the trial is nondeterministic: in a second run of it, these differ at step "
                f"{step}: {listed(differences)}; look in {suspects}; {_AGAIN}"
            )
        else:
            message = (
                f"killed after step {kill.after} and resumed at step {kill.checkpoint}, the trial "
                f"differs from the same trial without the kill: at step {step} these differ: "
                f"{listed(differences)}. Some state that training changes is not in checkpoints (in a "
                "module variable, the environment, a file, an object of a library); look in "
                f"{suspects}; keep it in the callback or model, or register it with Trial.track"
            )
        line = line_of_differences(differences, user_objects)
        return [*notes, Finding(level, subject, message, line)], []
    promises = [
        "the same seed gives the same initial weights in two processes",
        f"{steps} steps repeat bit for bit in another process",
    ]
    if kill is not None:
        promises.append(
            f"killed (SIGKILL) after step {kill.after} and resumed at step {kill.checkpoint} in a "
            f"fresh process, the trial is bit-identical at step {steps}: weights, optimizer, "
            "metrics, history, callbacks, generators"
        )
    return notes, promises
