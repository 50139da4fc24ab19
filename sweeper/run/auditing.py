"""Audits of a run: the slot that ran a trial replays its last interval, and compares the end.

An audit resumes the trial in a fresh process from the last checkpoint but one, and compares the state at
the last one, as `sweeper.run.replays` does. So it finds any state that is not captured, by its
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
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.checkpoint.reading import load_checkpoint, read_kept
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    ExecutionError,
    Interrupted,
    RestoreError,
    SupersededError,
)
from sweeper.records.events import Notice
from sweeper.records.exactness import AuditOutcome, AuditRecord
from sweeper.records.results import TrialRecord
from sweeper.replay.comparison import Difference, errors, listed
from sweeper.run import replays
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import Failed
from sweeper.run.stored_study import inexact
from sweeper.run.worker.checkpoints import locate, origin_of
from sweeper.run.worker.gpus import SlotDevice
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
class IntervalReplay:
    """Replay of a part of a trial: from a checkpoint, or its beginning, to a later checkpoint.

    ``files`` is the trial's directory; ``devices`` are the visible GPUs, None for all.
    """

    trial: TrialRecord
    start: KeptCheckpoint | None
    end: KeptCheckpoint
    settings: StudySettings
    files: Path
    launcher: Launcher
    stopping: threading.Event
    devices: str | None = None

    @property
    def from_step(self) -> int:
        return 0 if self.start is None else self.start.step

    def outcome(self) -> Outcome:
        """Replay the interval, and return the comparison.

        Raises:
            DroppedError: A checkpoint is damaged, or the replay cannot be run or compared here.
            Interrupted: ``stopping`` was set.
            ExecutionError: The replay's process died.
        """
        try:
            for checkpoint in (self.start, self.end):
                if checkpoint is not None:
                    load_checkpoint(checkpoint.path)
            with scratch_directory("audit") as directory:
                comparison = replays.ComparedReplay(
                    replays.Reference({(self.end.step, self.end.epoch): self.end}, str(self.files)),
                    prepare=self._prepare,
                    directory=Path(directory),
                    launchers=[self.launcher],
                    stopping=self.stopping,
                ).run()
        except (CheckpointError, OSError) as error:
            raise DroppedError(f"it could not be replayed: {error}") from error
        starts = comparison.replayed.starts
        if starts and starts[0] != self.from_step:
            raise DroppedError(f"its replay began at step {starts[0]} instead of {self.from_step}")
        for replayed in (comparison.replayed, comparison.again):
            if replayed is not None and replayed.reached is None:
                return Outcome(self, comparison, _other_end(replayed))
        return Outcome(self, comparison)

    def _prepare(self, directory: Path) -> replays.ReplayOrder:
        """Return the order of a replay below ``directory``, with a copy of the trial's own files there."""
        trial = self.trial
        if self.start is not None and self.files.is_dir():
            size = sum(file.stat().st_size for file in self.files.rglob("*") if file.is_file())
            if size > _MOST_FILES:
                raise DroppedError(
                    f"the trial's directory {self.files} has {size >> 20} MB, which is too much "
                    "to copy"
                )
            target = RunPaths(directory, self.settings.name).trial_files(trial.number)
            shutil.copytree(self.files, target, symlinks=True)
        sought = [f["path"] for f in trial.files["written"] if f.get("sought")]
        if self.start is None and sought:
            raise DroppedError(
                f"the trial did not find {sought[0]} when it began, and a replay would"
            )
        return replays.ReplayOrder(
            settings=replace(self.settings, epochs=trial.length or self.settings.epochs),
            number=trial.number,
            answer=replays.Answers(trial.params, trial.distributions),
            starts_from=None if self.start is None else self.start.path,
            ends_at=(self.end.step, self.end.epoch),
            devices=self.devices,
            proposals=trial.proposals,
        )


def _other_end(replayed: replays.Replayed) -> str:
    end = replayed.end
    if not isinstance(end, Failed):
        return f"ends at step {getattr(end, 'step', None)} without a checkpoint there"
    # Under edited code nothing was run, so the trial may well be exact.
    if end.fault in ("memory", "definition") or (
        end.fault == "environment" and end.error_class != RestoreError.__name__
    ):
        raise DroppedError(end.error)
    return f"fails: {end.error}"


_SHOWN = 3
"""Maximum number of the user's lines in a message."""


@dataclass(frozen=True)
class Outcome:
    """Result of one interval's replays.

    Attributes:
        comparison: The replays, and what differs between the trial and the resumed one.
        other_end: How the replay ended before it reached the checkpoint, as the end of a sentence;
            None if it reached the checkpoint.
    """

    replay: IntervalReplay
    comparison: replays.ReplayComparison
    other_end: str | None = None

    @property
    def differing(self) -> list[Difference]:
        """Return the values that differ; a replay that ended before the checkpoint has none."""
        return errors(self.comparison.differences)

    @property
    def identical(self) -> bool:
        """Return whether the resumed trial is bit-identical."""
        return self.other_end is None and not self.differing

    @property
    def message(self) -> str:
        """Return what differs in one sentence, to follow "an audit found that"."""
        replay = self.replay
        differences = self.differing
        start = f"resumed from its checkpoint of step {replay.from_step}"
        if replay.start is None:
            start = "run again from its beginning"
        differing = listed(differences) if differences else f"it {self.other_end}"
        more = ""
        if self.comparison.repeats is False:
            more = "; a second replay differs from both, so the trial is nondeterministic"
        return (
            f"trial {replay.trial.number}, {start} in a fresh process, differs at step "
            f"{replay.end.step}: {differing}{more}"
        )

    @property
    def advice(self) -> str:
        """Return probable causes and advice, with the user's own callbacks."""
        user_objects = self.comparison.replayed.user_objects
        callbacks = () if user_objects is None else user_objects.users
        hint = f" (look in {'; '.join(callbacks[:_SHOWN])})" if callbacks else ""
        return (
            "Either data are drawn again in each process (an unseeded split, shuffle or "
            "generator: seed it with trial.seed), or the code keeps state outside of "
            f"checkpoints: in a file, os.environ, an object of a library, another process{hint}. "
            "Keep such state in checkpoints (an attribute of a callback, trial.track), or "
            "compute it from epoch and step; `sweeper check FILE` finds more"
        )


def audit_trial(context: SlotContext, claim: Claim, device: SlotDevice) -> None:
    """Audit the trial that has just ended in this slot, if its turn has come.

    A difference stops every worker of the study, unless differences are accepted.

    Raises:
        DatabaseUnavailableError: It is unreachable for too long, or while a stop is requested.
    """
    launcher = context.runner
    settings = context.study.settings
    if callable(launcher) or not settings.deterministic or settings.audit == "off":
        return
    if context.stopping.is_set() or not (settings.audit == "all" or _is_due(context, claim.number)):
        return
    repository = context.study.repository_with_short_timeout
    files = context.study.paths.trial_files(claim.number)
    trial = context.ask(lambda: repository.trial(settings.name, claim.number))
    for start, end in _intervals(context, claim, trial):
        replay = IntervalReplay(
            trial, start, end, settings, files, launcher, context.stopping, device.visible
        )
        began = time.monotonic()
        outcome = None
        try:
            outcome = replay.outcome()
            word: AuditOutcome = "identical"
            report: dict[str, str] = {}
            if not outcome.identical:
                word = "differs"
                report = {"message": outcome.message, "advice": outcome.advice}
        except Interrupted:
            return
        except (DroppedError, ExecutionError) as reason:
            word = "dropped"
            report = {"message": str(reason)}
            context.report(
                Notice(
                    f"the audit of trial {trial.number} from step {replay.from_step} to "
                    f"{end.step} gives no verdict: {reason}"
                )
            )
        seconds = time.monotonic() - began
        audit = AuditRecord(replay.from_step, end.step, word, seconds)
        record = functools.partial(repository.record_audit, settings.name, trial.number)
        with suppress(SupersededError):
            # Another worker has started the trial again meanwhile, so the verdict is of no present result.
            context.ask(functools.partial(record, claim.attempt, audit, report))
        if outcome is not None and not outcome.identical:
            _end_the_run(context, outcome)
            return


def _is_due(context: SlotContext, number: int) -> bool:
    """Return whether a trial is the study's first, or is drawn with the share of time as probability."""
    if number == 0:
        return True
    study = context.study
    audit, attempt = context.ask(
        lambda: study.repository_with_short_timeout.audit_costs(study.settings.name)
    )
    if attempt is None:
        return False
    if audit is None:
        return _first_is_not_audited(context)
    chance = _SHARE * attempt / audit
    drawn = random.Random(f"audit:{study.settings.seed}:{number}")  # noqa: S311 - no secret
    return drawn.random() < chance


def _first_is_not_audited(context: SlotContext) -> bool:
    """Return whether the first trial failed, or ended under an earlier worker, whose audit was stopped."""
    repository = context.study.repository_with_short_timeout
    study = context.study.settings.name
    first = context.ask(lambda: repository.trial(study, 0))
    if first.state not in ("complete", "pruned"):
        return first.state == "failed"
    workers = context.ask(lambda: repository.workers(study))
    [row] = [worker for worker in workers if worker.key == context.worker_row.key]
    ended = first.attempts[-1].ended_at
    return ended is not None and ended < row.joined_at


def _intervals(
    context: SlotContext, claim: Claim, trial: TrialRecord
) -> Sequence[tuple[KeptCheckpoint | None, KeptCheckpoint]]:
    """Return the intervals to audit: the last one, or with ``audit="all"`` every one that is kept.

    A trial that keeps one checkpoint is replayed from its beginning.
    """
    settings = context.study.settings
    located = [parse_location(path) for path in locate(trial, context.study.paths).known]
    checkpoints = read_kept((), located, origin=origin_of(claim, settings.seed))
    ordered = sorted(
        (checkpoint for checkpoint in checkpoints if checkpoint.good),
        key=lambda checkpoint: checkpoint.step,
    )
    intervals = list(zip([None, *ordered], ordered, strict=False))
    return intervals if settings.audit == "all" else intervals[-1:]


def _end_the_run(context: SlotContext, outcome: Outcome) -> None:
    """Stop every worker of the study, unless differences are accepted."""
    study = context.study.settings.name
    repository = context.study.repository_with_short_timeout
    if context.ask(lambda: repository.exactness(study)).accepted:
        context.report(Notice(f"exactness is not promised: an audit found that {outcome.message}"))
        return
    context.ask(lambda: repository.request_stop(study, "drain"))
    context.abort(inexact(study, outcome.message, outcome.advice))
