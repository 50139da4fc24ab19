"""`sweeper check`: two replays of the study's first trial, shortened, and their comparison.

The first replay trains `SHORT_EPOCHS` short epochs, with every hook and every validation. The second
is killed after a checkpoint in the middle of its second epoch, once that epoch has ended, and resumed
in a fresh process. So state in the process is lost, and state in a file is changed twice. What differs
between the two at a checkpoint before the kill is nondeterministic; what differs after it was lost.

Each replay has its own fork server, so that they differ in addresses and orders of sets, as a run and its
resume do. `sweeper.run.compared_replays` compares them, as `verify` and audits do. Where something differs
after the kill, a third replay, killed in the same way, tells whether the trial repeats. No database is opened,
and every file is below a temporary directory.

The estimates of time and disk are upper bounds: a trial that stops early takes less time, and retention rules
with a metric may keep fewer checkpoints.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.checkpoint.operations import link_checkpoint
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.files.rules import TrialUses, in_a_check
from sweeper.files.uses import set_aside, uses_from_json
from sweeper.records.results import Params
from sweeper.replay.findings import Difference, errors
from sweeper.replay.lines import line_of_argument
from sweeper.replay.reports import (
    Authored,
    CheckFinding,
    CheckReport,
    Estimate,
    Level,
    Line,
    StudyAuthors,
    ranked,
)
from sweeper.run.compared_replays import (
    ComparedReplay,
    Position,
    Reference,
    ReplayComparison,
)
from sweeper.run.launch.launchers import WarmServer, choose_launcher
from sweeper.run.launch.sources import load_source, target_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import CheckpointCommitted, Failed, Finished
from sweeper.run.replays import Kill, ReplayDiedError, Replayed, ReplayOrder, run_again
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import check_grid, grid_size
from sweeper.search.spec import SamplerSpec, needs_definition, search_spec
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.paths import RunPaths, scratch_directory

SHORT_EPOCHS = 3
"""Epochs of a shortened trial, enough to lose, and then to use, state that is used only at the end of an epoch."""

_COMPARED = 3
"""Maximum number of trials whose files are compared with those of trial 0."""


def kill_of(end: int, steps: int) -> Kill | None:
    """Return the kill of a trial that ends at step ``end``, with epochs of ``steps``; None if too short.

    It follows a checkpoint in the middle of the second epoch, after that epoch's end.
    """
    if end < 2:
        return None
    if end <= steps:
        return Kill(end // 2, end // 2 + 1)
    return Kill(min(steps + steps // 2, end - 1), min(end, 2 * steps + 1))


@dataclass
class Drawn:
    """Parameters of one of a study's first trials, drawn on request without a database.

    Attributes:
        spec: Sampler or grid of the study.
        number: The trial's number; for a grid with fewer points, the last point is used.
        values: The parameters that were requested.
    """

    spec: SamplerSpec
    number: int
    values: Params = field(default_factory=dict)
    _session: SearchSession | None = None

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the value of ``name``.

        Raises:
            ParameterError: There is none.
        """
        if self._session is None:
            number, spec = self.number, self.spec
            if spec.grid is not None:
                number = min(number, grid_size(spec.grid) - 1)
            # No trial of a check may wait for another one's result.
            window = None if spec.window is None else max(number + 1, spec.window)
            self._session = open_search(replace(spec, window=window, pruner=None), number)
        value = self._session.suggest(name, distribution)
        self.values = {**self.values, name: value}
        return value


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
    with scratch_directory("check") as directory, _servers(target) as opened:
        report = _Check(opened, Path(directory), tell).report(workers)
    return replace(report, seconds={"total": time.monotonic() - began})


@dataclass(frozen=True)
class _Opened:
    """A loaded study, with the launchers of two servers."""

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
        servers = [WarmServer(source) for _ in range(2)]
        for server in servers:
            held.callback(server.close)
        loaded, _ = (server.loaded() for server in servers)
        settings = loaded.settings
        if settings.sampler == "grid":
            check_grid(settings.grid, settings.trials // settings.repeats)
        definition: StudyDefinition | None = None
        if needs_definition(settings):
            definition = load_source(source)
        launchers = [choose_launcher(server, loaded, "auto") for server in servers]
        for launcher in launchers:
            held.callback(launcher.close)
        location = target.rpartition(":")[0] or target
        files = (Path(each).resolve() for each in (target, location))
        yield _Opened(
            settings,
            search_spec(settings, definition),
            (launchers[0], launchers[1]),
            loaded.cannot_fork,
            loaded.imported_by_trials,
            next((str(each) for each in files if each.is_file()), None),
        )


class _Check:
    def __init__(self, opened: _Opened, directory: Path, tell: Callable[[str], None]) -> None:
        self._opened = opened
        self._settings = opened.settings
        self._short = replace(
            opened.settings, epochs=min(SHORT_EPOCHS, opened.settings.epochs), budget=None
        )
        self._directory = directory
        self._tell = tell
        self._stopping = threading.Event()
        self._kept: dict[Position, Path] = {}
        self._created: set[str] = set()
        self._findings: list[CheckFinding] = []
        self._held: list[str] = []

    def report(self, workers: int) -> CheckReport:
        """Run both replays, and return the report.

        Raises:
            ExecutionError: A process could not be started.
        """
        self._look_at_settings()
        self._tell("training the first trial for some short epochs")
        trained = self._train(0, "first", seen=self._keep)
        replayed = [trained]
        if not isinstance(trained.end, Failed) and trained.end is not None:
            self._look_at_files(trained)
            self._held += self._promises(trained)
            compared = self._resume(trained)
            if compared is not None:
                level: Level = "error" if self._settings.deterministic else "warning"
                findings, held = judge(trained, compared, self._kill(trained), level)
                self._findings += findings
                self._held += held
                replayed += [each for each in (compared.replayed, compared.again) if each]
        return CheckReport(
            study=self._settings.name,
            findings=ranked(self._findings),
            held=tuple(self._held),
            metrics=tuple(
                dict.fromkeys(n for epoch in trained.epochs.values() for n in epoch.metrics)
            ),
            estimate=estimate(self._settings, trained, workers=workers),
            steps=sum(getattr(each.end, "step", 0) for each in replayed),
        )

    def _find(self, level: Level, check: str, message: str, line: Line | None) -> None:
        self._findings.append(CheckFinding(level, check, message, line))

    def _order(self, number: int) -> ReplayOrder:
        """Return the order of a shortened trial."""
        return ReplayOrder(
            settings=self._short,
            number=self._settings.repeating.number(number, 0),
            answers=Drawn(self._opened.search, number),
            checkpoints=None,
            short=True,
            when_stopped="the check was stopped",
        )

    def _train(
        self,
        number: int,
        directory: str,
        *,
        seen: Callable[[CheckpointCommitted], None] = lambda _: None,
    ) -> Replayed:
        """Train a shortened trial; report its error and its warnings."""
        order = replace(self._order(number), seen=seen)
        launchers, below = self._opened.launchers, self._directory / directory
        try:
            replayed = run_again(order, launchers[:1], below, lambda _: None, self._stopping)
        except ReplayDiedError as died:
            replayed = died.replayed
            if not isinstance(replayed.end, Failed):
                what = "after its factories ran" if replayed.authors else "in its factories"
                message = f"the process of trial {number} {died.how} {what}"
                self._find("error", "build", message, self._argument("model"))
        if isinstance(replayed.end, Failed):
            self._findings.append(finding_of_failure(replayed.end, self._argument))
        for message in replayed.warnings[False]:
            self._find("warning", "independence", message, self._argument("model"))
        for message in replayed.warnings[True]:
            self._find("note", "capture", message, None)
        self._set_aside(replayed, directory)
        return replayed

    def _set_aside(self, replayed: Replayed, directory: str) -> None:
        """Set aside what a replay created, so that the next one begins as the first one did."""
        # A killed process reports nothing, so what earlier ones created is looked for, too.
        self._created |= {
            use.path for use in uses_from_json(replayed.files) if use.wrote and not use.existed
        }
        set_aside(self._created, self._directory / "aside" / directory)

    def _look_at_files(self, first: Replayed) -> None:
        """Compare what trial 0 wrote outside of its directory with what other trials write there.

        Trials 1 to `_COMPARED` are trained only if trial 0 wrote there. None of them is offered the files of
        another. Several are needed because two trials may have the decisive parameter in common.
        """
        uses = uses_from_json(first.files)
        if not any(use.wrote for use in uses):
            return
        ours = TrialUses("trial 0", uses)
        trials = self._settings.trials // self._settings.repeats
        for number in range(1, min(_COMPARED, trials - 1) + 1):
            self._tell(f"training trial {number} without the files that trial 0 wrote")
            other = self._train(number, f"files-{number}")
            theirs = TrialUses(f"trial {number}", uses_from_json(other.files))
            found = list(in_a_check(ours, theirs))
            for each in found:
                self._find(each.level, "files", each.message, None)
            if any(each.level == "error" for each in found):
                return

    def _keep(self, committed: CheckpointCommitted) -> None:
        """Keep a checkpoint of the first replay for the comparison."""
        path = self._directory / "kept" / str(len(self._kept)) / Path(committed.path).name
        link_checkpoint(Path(committed.path), path)
        self._kept[committed.step, committed.epoch] = path

    def _kill(self, trained: Replayed) -> Kill | None:
        return kill_of(getattr(trained.end, "step", 0), trained.steps_per_epoch)

    def _resume(self, trained: Replayed) -> ReplayComparison | None:
        """Run the replay that is killed and resumed; None if it could not be compared."""
        kill = self._kill(trained)
        self._tell(
            "training it again"
            if kill is None
            else f"training it again, killed after step {kill.after} and resumed"
        )
        order = replace(
            self._order(0), checkpoints=tuple(self._kept), kills=() if kill is None else (kill,)
        )
        runs = []

        def prepare(directory: Path) -> ReplayOrder:
            self._set_aside(Replayed(), f"before-{directory.name}")
            runs.append(directory)
            return replace(order, answers=Drawn(self._opened.search, 0))

        files = RunPaths(self._directory / "first", self._short.name).trial_files(order.number)
        replay = ComparedReplay(
            prepare=prepare,
            directory=self._directory / "resumed",
            references={at: Reference(path, str(files)) for at, path in self._kept.items()},
            launchers=self._opened.launchers[::-1],
            stopping=self._stopping,
            objectives=[objective.name for objective in self._settings.objectives],
            epochs={epoch: record.metrics for epoch, record in trained.epochs.items()},
        )
        try:
            compared = replay.run()
        except ReplayDiedError as died:
            message = (
                f"the resumed trial did not reach step {getattr(trained.end, 'step', 0)}, which the "
                f"same trial without a kill reached: its process {died.how}"
            )
            self._find("error", "resume", message, self._argument("model"))
            return None
        finally:
            self._set_aside(Replayed(), f"after-{len(runs)}")
        failed = compared.replayed.end
        if isinstance(failed, Failed):
            what = "resumed" if len(compared.replayed.processes) > 1 else "trained again"
            message = f"the trial that was {what} failed: {failed.error}"
            self._find("error", "resume", message, failed.line or self._argument("model"))
            return None
        return compared

    def _promises(self, trained: Replayed) -> Iterator[str]:
        """Yield what a trained trial shows."""
        yield "a trial starts from scratch: its factories make its model, optimizer and callbacks"
        yield "everything that training changes can be captured"
        names = [objective.name for objective in self._settings.objectives]
        if any(set(names) <= set(epoch.metrics) for epoch in trained.epochs.values()):
            yield f"the objective {', '.join(map(repr, names))} is among the metrics of an epoch"

    def _look_at_settings(self) -> None:
        if not self._settings.deterministic:
            self._find(
                "warning",
                "settings",
                "deterministic=False: kernels may give different bits each time, so exactness is "
                "not promised, and a resumed or repeated trial may end with another result",
                self._argument("deterministic"),
            )
        if self._opened.cannot_fork:
            self._find(
                "note",
                "settings",
                "every trial starts a new Python, which takes some seconds, because "
                f"{self._opened.cannot_fork}",
                self._argument("name"),
            )
        elif self._opened.imported_by_trials:
            self._find(
                "note",
                "settings",
                "every trial imports the study in its own process, because "
                f"{self._opened.imported_by_trials}; the code at the top of the file runs again "
                "for each trial",
                self._argument("name"),
            )

    def _argument(self, argument: str) -> Line | None:
        if self._opened.file is None:
            return None
        return line_of_argument(self._opened.file, self._settings.name, argument)


def estimate(settings: StudySettings, trained: Replayed, *, workers: int) -> Estimate | None:
    """Return estimates of the study's time and disk; None if no epoch ended.

    Args:
        settings: The study's settings.
        trained: Report of a shortened trial.
        workers: Trials side by side.
    """
    process, lengths = trained.processes[0], trained.lengths
    if not process.epoch_seconds or process.started_after is None or lengths is None:
        return None
    # TensorFlow traces the steps of the first epoch.
    seconds = process.epoch_seconds[1:] or process.epoch_seconds
    epoch = trial = study = None
    if lengths.steps is not None:
        times = max(1.0, lengths.steps / max(1, trained.steps_per_epoch))
        if lengths.validation_steps:
            times = max(times, lengths.validation_batches / lengths.validation_steps)
        epoch = times * sum(seconds) / len(seconds)
        trial = process.started_after + settings.epochs * epoch
        study = trial * math.ceil(settings.trials / workers)
    kept = checkpoints_kept(settings, lengths.steps, trial)
    return Estimate(
        steps_per_epoch=lengths.steps,
        epoch_seconds=epoch,
        startup_seconds=process.started_after,
        trial_seconds=trial,
        study_seconds=study,
        workers=workers,
        checkpoint_bytes=process.bytes,
        checkpoints_kept=kept,
        disk_bytes=process.bytes * kept * settings.trials,
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


_SHOWN = 3

_CHECKS = {
    "DataError": ("data", "data"),
    "IndependenceError": ("independence", "model"),
    "ObjectiveError": ("objective", "objective"),
    "UncapturableError": ("capture", "callbacks"),
}
"""Check and argument of `Study` of an error that ends a trial, by the error's type."""

_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "TBNotInstalledError")

_AGAIN = (
    "so a resumed, repeated or verified trial would have another result; draw random numbers "
    "from trial.seed or from the global generators, which are seeded, and do not read the clock"
)


def finding_of_failure(failed: Failed, argument: Callable[[str], Line | None]) -> CheckFinding:
    """Return the finding for an error that ended a trial.

    ``argument`` returns the line of an argument of `Study`, for an error of no line of the user's.
    """
    kind, _, message = failed.error.partition(": ")
    check, where = _CHECKS.get(kind, ("build", "model"))
    if kind not in _CHECKS:
        message = failed.error
        if kind in _IMPORT_ERRORS and " is not installed" in message:
            check = "installation"
    return CheckFinding("error", check, message, failed.line or argument(where))


def judge(
    trained: Replayed, compared: ReplayComparison, kill: Kill | None, level: Level
) -> tuple[list[CheckFinding], list[str]]:
    """Return findings on whether a trial repeats and survives a kill, and the promises that hold.

    Args:
        trained: The first replay.
        compared: Comparison of the first replay with the second.
        kill: Kill of the second replay; None if it was not killed.
        level: Level of a difference: ``"error"`` if the study promises exactness.
    """
    authors = trained.authors
    if authors is None:
        msg = "the first replay did not build its trial"
        raise ValueError(msg)
    notes = list(_measured(compared, authors))
    by_step = {
        step: found
        for (step, _), seen in sorted(compared.checkpoints.items())
        if (found := errors(seen.differences))
    }
    ours, theirs = _end(trained), _end(compared.replayed)
    if not by_step and ours != theirs:
        how = f"{ours} undisturbed, {theirs} resumed"
        by_step = {ours[0]: [Difference("position", "end", "the end", how, "error", False)]}
    first = min(by_step, default=0)
    if trained.weights != compared.replayed.weights:
        message = (
            f"the model factory {authors.model.name} returned different initial weights in a "
            f"second run of the same trial with the same seed; {_AGAIN}"
        )
        return [*notes, CheckFinding(level, "seeds", message, authors.model.line)], []
    if by_step and (kill is None or first <= kill.checkpoint or compared.repeats is False):
        message = (
            "the trial is nondeterministic: in a second run of it, these differ at step "
            f"{first}: {_shown(by_step[first])}; look in {_suspects(authors)}; {_AGAIN}"
        )
        return [
            *notes,
            CheckFinding(level, "determinism", message, _line(by_step[first], authors)),
        ], []
    if kill is not None and by_step:
        message = (
            f"killed after step {kill.after} and resumed at step {kill.checkpoint}, the trial "
            f"differs from the same trial without the kill: at step {first} these differ: "
            f"{_shown(by_step[first])}. Some state that training changes is not in checkpoints "
            "(in a module variable, the environment, a file, an object of a library); look in "
            f"{_suspects(authors)}; keep it in the callback or model, or register it with "
            "Trial.track"
        )
        return [*notes, CheckFinding(level, "resume", message, _line(by_step[first], authors))], []
    end = ours[0]
    held = [
        "the same seed gives the same initial weights in two processes",
        f"{end} steps repeat bit for bit in another process",
    ]
    if kill is not None:
        held.append(
            f"killed (SIGKILL) after step {kill.after} and resumed at step {kill.checkpoint} in a "
            f"fresh process, the trial is bit-identical at step {end}: weights, optimizer, "
            "metrics, history, callbacks, generators"
        )
    return notes, held


def _end(replayed: Replayed) -> tuple[int, str, str]:
    """Return the step, the value and the digest at a replay's end."""
    end = replayed.end
    if not isinstance(end, Finished):
        return 0, "", ""
    return end.step, repr(end.value), end.digest


def _measured(compared: ReplayComparison, authors: StudyAuthors) -> Iterator[CheckFinding]:
    """Yield a note for each value that differs between two equal runs."""
    noted = {each.name: each for each in compared.differences if each.level == "note"}
    for each in noted.values():
        message = (
            f"{each.name} differs between two runs of the same trial ({each.how}); no result "
            "depends on it"
        )
        yield CheckFinding("note", "determinism", message, _line([each], authors))


def _shown(found: Sequence[Difference]) -> str:
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return f"{'; '.join(map(str, found[:_SHOWN]))}{more}"


def _suspects(authors: StudyAuthors) -> str:
    """Return the user's callbacks with their lines; the factories if there are none."""
    return ", ".join(authors.users or (str(authors.data), str(authors.model)))


def _line(found: Sequence[Difference], authors: StudyAuthors) -> Line | None:
    """Return the line of the user's callback in which the first difference is, or of a likely one."""
    for each in found:
        owner = _owner(each, authors)
        if owner is not None and owner.line is not None:
            return owner.line
    own = (callback.line for callback in authors.callbacks if callback.line is not None)
    return next(own, authors.model.line)


def _owner(difference: Difference, authors: StudyAuthors) -> Authored | None:
    owners = [c for c in authors.callbacks if difference.name.startswith(f"callback {c.name}")]
    return max(owners, key=lambda callback: len(callback.name), default=None)
