"""Audits of a run: the slot that ran a trial replays its last interval, and compares the end.

An audit resumes the trial in a fresh process from the last checkpoint but one, and compares the state at
the last one, as `sweeper.run.compared_replays` does. So it finds any state that is not captured, by its
effect on the running study. The study's first trial is always audited. Of the later ones, trials are
drawn from the study's seed and their numbers, with a probability that keeps the audits below 5% of the
sweep.

A checkpoint that does not verify, or a replay that cannot be run, gives no verdict, and leaves the trial
alone. An audit that is stopped is not made up for; where it was the first trial's, the next trial that ends
is audited in its place.
"""

from __future__ import annotations

import functools
import random
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.checkpoint.reading import load_checkpoint, read_kept
from sweeper.db.repository import AuditVerdict, Repository
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    ExactnessError,
    ExecutionError,
    Interrupted,
    SupersededError,
)
from sweeper.records.events import Notice
from sweeper.records.exactness import AuditOutcome
from sweeper.records.results import TrialRecord
from sweeper.replay.findings import Difference, errors
from sweeper.run.compared_replays import ComparedReplay, Reference, ReplayComparison
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import Failed
from sweeper.run.replays import Answers, Replayed, ReplayOrder
from sweeper.run.worker.checkpoints import locate, origin_of
from sweeper.run.worker.gpus import SlotDevice
from sweeper.spec.checkpointing import KeptCheckpoint
from sweeper.support.paths import RunPaths, parse_location, scratch_directory

if TYPE_CHECKING:
    from sweeper.db.repository import Claim
    from sweeper.run.worker.context import SlotContext

_SHARE = 0.05
"""Share of a sweep's time that the audits of drawn trials may take."""

_MOST_FILES = 512 << 20
"""Maximum size in bytes of a trial's directory that is copied for a replay."""


class DroppedError(Exception):
    """The interval cannot be compared, for a reason outside of the trial."""


@dataclass(frozen=True)
class Interval:
    """Part of a trial to replay: from a checkpoint, or its beginning (None), to a later checkpoint."""

    start: KeptCheckpoint | None
    end: KeptCheckpoint

    @property
    def from_step(self) -> int:
        return 0 if self.start is None else self.start.step


@dataclass(frozen=True)
class Outcome:
    """Result of one interval's replays.

    Attributes:
        comparison: The replays, and what differs between the trial and the resumed one.
        other_end: How the replay ended before it reached the checkpoint, as the end of a sentence;
            None if it reached the checkpoint.
    """

    comparison: ReplayComparison
    other_end: str | None = None

    @property
    def alike(self) -> bool:
        """Return whether the resumed trial is bit-identical."""
        return self.other_end is None and not errors(self.comparison.differences)


@dataclass(frozen=True)
class IntervalReplay:
    """Replay of one interval of a trial.

    Args:
        trial: The trial, with its parameters.
        interval: The interval.
        settings: The study's settings.
        files: `Trial.directory` of the trial.
        launcher: Launcher of the replay's processes.
        stopping: Event that ends the replay when it is set.
        devices: GPUs that are visible to the processes; None for all.
    """

    trial: TrialRecord
    interval: Interval
    settings: StudySettings
    files: Path
    launcher: Launcher
    stopping: threading.Event
    devices: str | None = None

    def outcome(self) -> Outcome:
        """Replay the interval, and return the comparison.

        Raises:
            DroppedError: A checkpoint is damaged, or the replay cannot be run or compared here.
            Interrupted: ``stopping`` was set.
            ExecutionError: The replay's process died.
        """
        interval = self.interval
        try:
            for each in (interval.start, interval.end):
                if each is not None:
                    load_checkpoint(each.path)
            with scratch_directory("audit") as directory:
                comparison = self._compare(Path(directory))
        except (CheckpointError, OSError) as error:
            msg = f"it could not be replayed: {error}"
            raise DroppedError(msg) from error
        starts = comparison.replayed.starts
        if starts and starts[0] != interval.from_step:
            msg = f"its replay began at step {starts[0]} instead of {interval.from_step}"
            raise DroppedError(msg)
        for replayed in (comparison.replayed, comparison.again):
            if replayed is not None and replayed.reached is None:
                return Outcome(comparison, _other_end(replayed))
        return Outcome(comparison)

    def _compare(self, directory: Path) -> ReplayComparison:
        end = self.interval.end
        position = (end.step, end.epoch)
        return ComparedReplay(
            prepare=self._prepare,
            directory=directory,
            references={position: Reference(end.path, str(self.files))},
            launchers=[self.launcher],
            stopping=self.stopping,
            objectives=[objective.name for objective in self.settings.objectives],
        ).run()

    def _prepare(self, directory: Path) -> ReplayOrder:
        """Return the order of a replay below ``directory``, with a copy of the trial's own files there."""
        trial, start, end = self.trial, self.interval.start, self.interval.end
        if start is not None:
            self._copy_files(directory)
        elif sought := [f["path"] for f in trial.files["written"] if f.get("sought")]:
            msg = f"the trial did not find {sought[0]} when it began, and a replay would"
            raise DroppedError(msg)
        return ReplayOrder(
            settings=replace(self.settings, epochs=trial.length or self.settings.epochs),
            number=trial.number,
            answers=Answers(trial.params, trial.distributions),
            checkpoints=((end.step, end.epoch),),
            starts_from=None if start is None else start.path,
            ends_at=(end.step, end.epoch),
            devices=self.devices,
        )

    def _copy_files(self, directory: Path) -> None:
        target = RunPaths(directory, self.settings.name).trial_files(self.trial.number)
        if not self.files.is_dir():
            return
        size = sum(file.stat().st_size for file in self.files.rglob("*") if file.is_file())
        if size > _MOST_FILES:
            msg = (
                f"the trial's directory {self.files} has {size >> 20} MB, which is too much to copy"
            )
            raise DroppedError(msg)
        try:
            shutil.copytree(self.files, target, symlinks=True)
        except shutil.Error as error:
            raise DroppedError(str(error)) from error


def _other_end(replayed: Replayed) -> str:
    end = replayed.end
    if not isinstance(end, Failed):
        return f"ends at step {getattr(end, 'step', None)} without a checkpoint there"
    # Under edited code nothing was run, so the trial may well be exact.
    if end.fault in ("memory", "definition") or (
        end.fault == "environment" and not end.error.startswith("RestoreError")
    ):
        raise DroppedError(end.error)
    return f"fails: {end.error}"


_SHOWN = 3


@dataclass(frozen=True)
class FoundDifference:
    """Report of a difference that an audit found.

    Attributes:
        message: One sentence, to follow "an audit found that".
        first: The first value that differs; None if the replay ended before the checkpoint.
        repeats: Whether a second replay equals the first; None without a second replay.
        written: The user's own callbacks, each with its file and line.
    """

    message: str
    first: Difference | None
    repeats: bool | None
    written: tuple[str, ...]

    @property
    def advice(self) -> str:
        """Return probable causes and advice."""
        own = f" (look in {'; '.join(self.written[:_SHOWN])})" if self.written else ""
        return (
            "Either data are drawn again in each process (an unseeded split, shuffle or "
            "generator: seed it with trial.seed), or the code keeps state outside of "
            f"checkpoints: in a file, os.environ, an object of a library, another process{own}. "
            "Keep such state in checkpoints (an attribute of a callback, trial.track), or "
            "compute it from epoch and step; `sweeper check FILE` finds more"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "advice": self.advice,
            "component": None if self.first is None else self.first.component,
            "variable": None if self.first is None else self.first.name,
            "repeats": self.repeats,
            "written": list(self.written),
        }


def explain(replay: IntervalReplay, outcome: Outcome) -> FoundDifference:
    """Return the report of an ``outcome`` with differences."""
    interval, authors = replay.interval, outcome.comparison.replayed.authors
    found, repeats = errors(outcome.comparison.differences), outcome.comparison.repeats
    shown = _shown(found)
    begins = f"resumed from its checkpoint of step {interval.from_step}"
    if interval.start is None:
        begins = "run again from its beginning"
    said = [
        f"trial {replay.trial.number}, {begins} in a fresh process, ",
        f"differs at step {interval.end.step}: ",
        "; ".join(map(str, shown)) if found else f"it {outcome.other_end}",
    ]
    if len(found) > len(shown):
        said.append(f", and {len(found) - len(shown)} more values differ")
    if repeats is False:
        said.append("; a second replay differs from both, so the trial is nondeterministic")
    return FoundDifference(
        message="".join(said),
        first=found[0] if found else None,
        repeats=repeats,
        written=() if authors is None else authors.users,
    )


def _shown(differences: Sequence[Difference]) -> list[Difference]:
    """Return the first differences whose values are short enough to read."""
    short = [d for d in differences[1:] if not d.how.startswith("differs ")]
    return [*differences[:1], *short[: _SHOWN - 1]]


def audit_trial(context: SlotContext, claim: Claim, device: SlotDevice) -> None:
    """Audit the trial that has just ended in this slot, if its turn has come.

    A difference stops every worker of the study, unless differences are accepted.

    Raises:
        DatabaseUnavailableError: It is unreachable for too long, or while a stop is requested.
    """
    launcher, settings = context.runner, context.study.settings
    if callable(launcher) or not settings.deterministic or settings.audit == "off":
        return
    if context.stopping.is_set() or not (settings.audit == "all" or _is_due(context, claim.number)):
        return
    repository, paths = context.study.impatient, context.study.paths
    trial = context.ask(lambda: context.study.impatient.trial(settings.name, claim.number))
    for interval in _intervals(context, claim, trial):
        replay = IntervalReplay(
            trial,
            interval,
            settings,
            paths.trial_files(trial.number),
            launcher,
            context.stopping,
            device.visible,
        )
        began, report = time.monotonic(), None
        try:
            outcome = replay.outcome()
            report = None if outcome.alike else explain(replay, outcome)
            word: AuditOutcome = "alike" if report is None else "differs"
            content = {} if report is None else report.to_json()
        except Interrupted:
            return
        except (DroppedError, ExecutionError) as reason:
            word, content = "dropped", {"message": str(reason)}
            context.tell(
                Notice(
                    f"the audit of trial {trial.number} from step {interval.from_step} to "
                    f"{interval.end.step} gives no verdict: {reason}"
                )
            )
        verdict = AuditVerdict(
            trial.number,
            claim.attempt,
            interval.from_step,
            interval.end.step,
            word,
            time.monotonic() - began,
            content,
        )
        with suppress(SupersededError):
            # Somebody has begun the trial again meanwhile: the verdict is of no present result.
            context.ask(functools.partial(repository.record_audit, settings.name, verdict))
        if report is not None:
            _end_the_run(context, report)
            return


def _is_due(context: SlotContext, number: int) -> bool:
    """Return whether a trial is the study's first, or is drawn with the share of time as probability."""
    if number == 0:
        return True
    study = context.study
    costs = context.ask(lambda: study.impatient.audit_costs(study.settings.name))
    if costs.attempt is None:
        return False
    if costs.audit is None:
        return _first_is_not_audited(context)
    chance = _SHARE * costs.attempt / costs.audit
    drawn = random.Random(f"audit:{study.settings.seed}:{number}")  # noqa: S311 - no secret
    return drawn.random() < chance


def _first_is_not_audited(context: SlotContext) -> bool:
    """Return whether the first trial failed, or ended under an earlier worker, whose audit was stopped."""
    repository, study = context.study.impatient, context.study.settings.name
    first = context.ask(lambda: repository.trial(study, 0))
    if first.state not in ("complete", "pruned"):
        return first.state == "failed"
    workers = context.ask(lambda: repository.workers(study))
    [own] = [worker for worker in workers if worker.key == context.worker_row.key]
    ended = first.attempts[-1].ended_at
    return ended is not None and ended < own.joined_at


def _intervals(context: SlotContext, claim: Claim, trial: TrialRecord) -> Sequence[Interval]:
    """Return the intervals to audit: the last one, or with ``audit="all"`` every one that is kept.

    A trial that keeps one checkpoint is replayed from its beginning.
    """
    settings = context.study.settings
    located = [parse_location(path) for path in locate(trial, context.study.paths).known]
    kept = read_kept((), located, origin=origin_of(claim, settings.seed))
    ordered: list[KeptCheckpoint] = sorted((c for c in kept if c.good), key=lambda c: c.step)
    if not ordered:
        return ()
    if settings.audit == "all":
        return tuple(Interval(start, end) for start, end in pairwise((None, *ordered)) if end)
    return (Interval(*ordered[-2:]) if len(ordered) > 1 else Interval(None, ordered[-1]),)


def _end_the_run(context: SlotContext, found: FoundDifference) -> None:
    """Stop every worker of the study, unless differences are accepted."""
    study, repository = context.study.settings.name, context.study.impatient
    if context.ask(lambda: repository.exactness(study)).accepted:
        context.tell(Notice(f"exactness is not promised: an audit found that {found.message}"))
        return
    context.ask(lambda: repository.request_stop(study, "drain"))
    context.abort(ExactnessError(_words(study, found.message, found.advice)))


def refuse_inexact(repository: Repository, study: str, *, accept: bool) -> str | None:
    """Refuse to continue a study in which an audit found a difference that was not accepted.

    With ``accept``, differences are accepted from now on.

    Returns:
        The warning to show if a difference was accepted; None without a difference.

    Raises:
        ExactnessError: A difference was not accepted.
    """
    if accept:
        repository.accept_inexact(study)
    exactness = repository.exactness(study)
    if exactness.difference is None or exactness.accepted:
        return exactness.warning
    found = exactness.difference
    raise ExactnessError(_words(study, found.message, found.advice))


def _words(study: str, message: str, advice: str) -> str:
    return (
        f"exactness is not promised: an audit found that {message}. "
        f"{advice}{'. ' if advice else ''}Trials that were running are checkpointed. Fix the "
        f"study and give it another name, or continue with the difference: sweeper resume {study} "
        "--accept-inexact"
    )
