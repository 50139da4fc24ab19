"""Audits of a run: claims of intervals, their replays and their comparison.

A slot compares the study's first intervals in the background, while its trial runs. A slot that waits
for other trials, or has no trial left to claim, compares any interval. Between two trials, a slot
compares an interval only if no idle slot took it during the time of the last trial. An audit that is
interrupted, by a stop or the end of its process, is released and claimed again.

A checkpoint that does not verify drops the audit and leaves the trial alone: both pinned checkpoints
are read completely before a process is started. The comparison is that of `sweeper.run.compared_replays`,
from one pinned checkpoint to the next.
"""

from __future__ import annotations

import functools
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.operations import free_pins
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint
from sweeper.db.repository import FIRST_INTERVALS, MOST_TRIES, AuditClaim, Audits, Pinned
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    DatabaseUnavailableError,
    ExactnessError,
    ExecutionError,
    Interrupted,
    SupersededError,
    UsageError,
)
from sweeper.records.events import Notice
from sweeper.records.exactness import AuditOutcome
from sweeper.replay.comparison import compare_checkpoints
from sweeper.replay.findings import Difference, errors
from sweeper.replay.reports import StudyAuthors
from sweeper.run.compared_replays import ComparedReplay, Position, Reference, ReplayComparison
from sweeper.run.launch.trial_process import Launcher, Stopping
from sweeper.run.protocol.messages import AuditOrder, Failed, IntervalPinned
from sweeper.run.rehearsals import read_authors
from sweeper.run.replays import Answers, Replayed, ReplayOrder, run_again
from sweeper.run.worker.gpus import SlotDevice, find_gpus
from sweeper.support.paths import RunPaths
from sweeper.train.fingerprint import differences

if TYPE_CHECKING:
    from sweeper.db.repository import Claim
    from sweeper.run.worker.context import SlotContext


_MOST_FILES = 512 << 20
"""Maximum size in bytes of a trial's directory that is copied for a replay."""

_MOST_STEPS = 5000
"""Maximum number of steps for a replay from the beginning to find the first differing step."""

_MOST_COMPARED = 24
"""Number of checkpoints of a replay to find the first differing step."""

_ROUNDS = 2


class DroppedError(Exception):
    """The interval cannot be compared, for a reason outside of the trial."""


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


@dataclass
class IntervalReplay:
    """Replay of one claimed interval.

    Args:
        claim: The claimed interval.
        settings: The study's settings.
        launcher: Launcher of the replay's processes.
        stopping: Event that ends the replay when it is set.
        devices: GPUs that are visible to the processes; None for all.
        authors: Function that returns the user's own code; it returns None if that cannot be read.
    """

    claim: AuditClaim
    settings: StudySettings
    launcher: Launcher
    stopping: Stopping
    devices: str | None = None
    authors: Callable[[], StudyAuthors | None] = lambda: None
    _directory: Path = field(init=False)
    _copies: int = 0

    def __post_init__(self) -> None:
        directory = Path(self.claim.pinned.directory)
        self._directory = directory / f"replays-{uuid.uuid4().hex[:8]}"

    def outcome(self) -> Outcome:
        """Replay the interval, and return the comparison.

        Raises:
            DroppedError: A pinned checkpoint is damaged or missing, or the replay cannot be compared
                on this machine.
            Interrupted: ``stopping`` was set.
            ExecutionError: The replay's process died.
        """
        pinned = self.claim.pinned
        for path in (pinned.from_path, pinned.to_path):
            if path is not None:
                _check(Path(path))
        position = (pinned.to_step, pinned.to_epoch)
        replay = ComparedReplay(
            prepare=lambda directory: self.prepare(directory, [position]),
            directory=self._directory,
            references={position: Reference(Path(pinned.to_path), str(self._files))},
            launchers=[self.launcher],
            stopping=self.stopping,
            authors=self.authors,
            objectives=self.objectives,
        )
        try:
            comparison = replay.run()
        except OSError as error:
            msg = f"it could not be replayed: {error}"
            raise DroppedError(msg) from error
        finally:
            self.clear()
        self._check_surroundings(comparison.replayed)
        for each in (comparison.replayed, comparison.again):
            if each is not None and each.reached is None:
                return Outcome(comparison, _other_end(each))
        return Outcome(comparison)

    def prepare(
        self, directory: Path, positions: Sequence[Position], *, resumed: bool = True
    ) -> ReplayOrder:
        """Return the order of a replay below ``directory`` to the last of ``positions``.

        Args:
            directory: Directory of the replay. A copy of the trial's own files is made there if the
                replay resumes from a checkpoint.
            positions: Positions at which to take checkpoints, in order.
            resumed: Whether to start from the pinned checkpoint; otherwise from the trial's beginning.

        Raises:
            DroppedError: The trial's files are too large.
        """
        claim, starts_from = self.claim, None
        if resumed and claim.pinned.from_path is not None:
            starts_from = Path(claim.pinned.from_path).parent
            self._copy_files(directory)
        return ReplayOrder(
            settings=replace(self.settings, epochs=claim.epochs or self.settings.epochs),
            number=claim.trial,
            answers=Answers(claim.params, claim.distributions),
            checkpoints=tuple(positions),
            starts_from=starts_from,
            ends_at=positions[-1],
            devices=self.devices,
        )

    def first_step(self, comparison: ReplayComparison) -> int | None:
        """Return the first step at which the resumed trial differs; None if a few replays do not find it.

        Each round runs the interval twice with checkpoints at equal distances: once resumed, and once
        from the trial's beginning. A trial that does not repeat has no such step.

        Raises:
            Interrupted: ``stopping`` was set.
        """
        paths = {each.path for each in errors(comparison.differences)}
        pinned, steps = self.claim.pinned, comparison.replayed.steps_per_epoch
        if not (paths and comparison.repeats and pinned.from_path and steps):
            return None
        low, high = pinned.from_step, pinned.to_step
        if high > _MOST_STEPS:
            return None
        try:
            for _ in range(_ROUNDS):
                inner = range(low + 1, high, max(1, -(-(high - low) // _MOST_COMPARED)))
                if not inner:
                    break
                found = self._differing([(step, step // steps) for step in inner], paths)
                low = max([low, *(step for step in found if not found[step])])
                high = min([high, *(step for step in found if found[step])])
        except (ExecutionError, DroppedError, CheckpointError):
            # What differs is known already; only where it begins is not.
            return None
        finally:
            self.clear()
        return high if high - low == 1 else None

    def _differing(self, positions: Sequence[Position], paths: set[str]) -> dict[int, bool]:
        """Return, by step, whether a resumed run and a run from the beginning differ in one of ``paths``."""
        taken: list[dict[int, Path]] = []
        for resumed in (False, True):
            self._copies += 1
            directory = self._directory / f"{self._copies}"
            order = replace(self.prepare(directory, positions, resumed=resumed), keep_all=True)
            run_again(order, [self.launcher], directory, lambda _: None, self.stopping)
            kept = RunPaths(directory, self.claim.study).checkpoints(self.claim.trial, 1)
            names = {path: CheckpointName.parse(path.name) for path in list_checkpoints(kept)}
            taken.append({name.step: Path(str(path)) for path, name in names.items() if name})
        begun, again = taken
        return {
            step: any(each.path in paths for each in self._compare(begun[step], again[step]))
            for step in begun.keys() & again.keys()
        }

    def _compare(self, first: Path, second: Path) -> list[Difference]:
        return compare_checkpoints(
            first,
            second,
            directories=(str(first.parents[2] / "files"), str(second.parents[2] / "files")),
            objectives=self.objectives,
        )

    def clear(self) -> None:
        """Remove the files of the replays."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def objectives(self) -> list[str]:
        """Return the names of the study's objectives."""
        return [objective.name for objective in self.settings.objectives]

    def _check_surroundings(self, replayed: Replayed) -> None:
        """Check that the replay ran in the trial's environment, from the expected step.

        Raises:
            DroppedError: It did not.
        """
        start = self.claim.pinned.from_step
        if replayed.starts and replayed.starts[0] != start:
            msg = f"its replay began at step {replayed.starts[0]} instead of {start}"
            raise DroppedError(msg)
        if self.claim.fingerprint is None or not replayed.fingerprint:
            return
        found = differences(self.claim.fingerprint, replayed.fingerprint)
        if found:
            msg = f"it ran in an environment that this replay does not have: {'; '.join(found)}"
            raise DroppedError(msg)

    @property
    def _files(self) -> Path:
        """Return the directory of the trial's own files."""
        return Path(self.claim.pinned.directory).parents[2] / "files"

    def _copy_files(self, directory: Path) -> None:
        """Copy the trial's directory for the replay."""
        source = self._files
        target = RunPaths(directory, self.claim.study).trial_files(self.claim.trial)
        if not source.is_dir():
            return
        size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
        if size > _MOST_FILES:
            msg = f"the trial's directory {source} has {size >> 20} MB, which is too much to copy"
            raise DroppedError(msg)
        try:
            shutil.copytree(source, target, symlinks=True)
        except shutil.Error as error:
            # A file that the trial replaced during the copy might be missing after a real resume, too.
            if not target.is_dir():
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


def _check(path: Path) -> None:
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        msg = f"its pinned checkpoint cannot be used: {error}"
        raise DroppedError(msg) from error


_SHOWN = 3


@dataclass(frozen=True)
class FoundDifference:
    """Report of a difference that an audit found.

    Attributes:
        message: One sentence, to follow "an audit found that".
        first: The first value that differs; None if the replay ended before the checkpoint.
        first_step: The first step at which the resumed trial is known to differ; None if unknown.
        repeats: Whether a second replay equals the first; None without a second replay.
        written: The user's own callbacks, each with its file and line.
    """

    message: str
    first: Difference | None
    first_step: int | None
    repeats: bool | None
    written: tuple[str, ...]

    @property
    def advice(self) -> str:
        """Return probable causes and advice."""
        own = f" (look in {'; '.join(self.written[:_SHOWN])})" if self.written else ""
        return (
            "Either data are drawn anew in each process (an unseeded split, shuffle or "
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
            "first_step": self.first_step,
            "repeats": self.repeats,
            "written": list(self.written),
        }


def explain(replay: IntervalReplay, outcome: Outcome) -> FoundDifference:
    """Return the report of an ``outcome`` with differences.

    One separate process reads the study's code, to name the user's own callbacks.

    Raises:
        Interrupted: The replay was stopped.
    """
    claim, pinned, authors = replay.claim, replay.claim.pinned, replay.authors()
    found, repeats = errors(outcome.comparison.differences), outcome.comparison.repeats
    first_step = replay.first_step(outcome.comparison)
    shown = _shown(found)
    begins = f"resumed from its checkpoint of step {pinned.from_step}"
    if pinned.from_step == 0:
        begins = "run again from its beginning"
    said = [
        f"trial {claim.trial}, {begins} in a fresh process, differs at step {pinned.to_step}: ",
        "; ".join(map(str, shown)) if found else f"it {outcome.other_end}",
    ]
    if len(found) > len(shown):
        said.append(f", and {len(found) - len(shown)} more values differ")
    if first_step is not None:
        said.append(f"; it differs from step {first_step} on")
    if repeats is False:
        said.append("; a second replay differs from both, so the trial does not repeat at all")
    return FoundDifference(
        message="".join(said),
        first=found[0] if found else None,
        first_step=first_step,
        repeats=repeats,
        written=() if authors is None else authors.users,
    )


def _shown(differences: Sequence[Difference]) -> list[Difference]:
    """Return the first differences whose values are short enough to read."""
    short = [d for d in differences[1:] if not d.how.startswith("differs ")]
    return [*differences[:1], *short[: _SHOWN - 1]]


_EVERY = 8
"""Size of a block of trials; one trial of each block has a randomly chosen audit."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two queries for pinned first intervals."""

_NO_GPU = "-1"
"""Value of CUDA_VISIBLE_DEVICES with which TensorFlow uses no GPU."""

_NO_ROOM = "no slot was idle, and audits have used their share of the study's time"


class Auditor:
    """Audits of one worker, shared by its slots."""

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._study = context.study
        self._audits = context.study.impatient.audits
        self._gpu: bool | None = None
        self._settled = False
        self._compared = False
        settings = context.study.settings
        inline = callable(context.runner)
        self.policy = "off" if inline or not settings.deterministic else settings.audit

    def order(self, claim: Claim) -> AuditOrder | None:
        """Return the order to pin intervals of the claimed trial; None to pin none."""
        if self.policy == "off":
            return None
        settings, number = self._study.settings, claim.number
        if self._settled and claim.attempt == 1 and not self._is_drawn(number):
            return None
        which, has = self._context.ask(
            lambda _again: self._audits.plan(settings.name, number, drawn=self._is_drawn(number))
        )
        wanted = {"first": FIRST_INTERVALS, "drawn": 1}.get(which, 0)
        wanted = max(0, wanted - has)
        if which != "first" and self.policy == "auto":
            self._settled = self._context.ask(lambda _again: self._audits.is_settled(settings.name))
        epoch = 0
        if which == "drawn" and self.policy != "all":
            drawing = random.Random(f"interval:{settings.seed}:{number}")  # noqa: S311 - no secret
            epoch = drawing.randrange(settings.epochs)
        return AuditOrder(
            directory=str(self._study.paths.audits(number, claim.attempt)),
            which="all" if self.policy == "all" else which,
            wanted=wanted,
            middle=which == "first" and has == 0,
            epoch=epoch,
        )

    def pinned(self, token: int, interval: IntervalPinned) -> None:
        """Record a pinned interval, or remove it if it is not wanted."""
        wanted = self._audits.add(
            token,
            Pinned(
                from_step=interval.from_step,
                to_step=interval.to_step,
                to_epoch=interval.to_epoch,
                host=self._study.worker.host,
                directory=interval.directory,
                from_path=interval.from_path,
                to_path=interval.to_path,
                problem=interval.problem,
            ),
        )
        if not wanted:
            free_pins(interval.directory)

    @contextmanager
    def beside(self, device: SlotDevice) -> Iterator[None]:
        """Compare the study's first intervals in the background, while a trial runs here.

        A running comparison is completed when the trial is over. A difference or an error in it stops
        the whole worker.
        """
        if self.policy == "off" or self._compared or self._has_gpu(device):
            yield
            return
        closing = threading.Event()
        thread = threading.Thread(
            target=self._compare_first, args=(device, closing), name="sweeper-audit", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            closing.set()
            thread.join()

    def between_trials(self, device: SlotDevice, trial_seconds: float) -> None:
        """Compare first intervals, and intervals that have waited ``trial_seconds`` for an idle slot."""
        while not self._context.stopping.is_set() and self._one(device, waited=trial_seconds):
            pass

    def while_idle(self, device: SlotDevice) -> bool:
        """Compare one interval if the audits' share of time allows it; return whether there was one."""
        return not self._context.stopping.is_set() and self._one(device)

    def at_the_end(self, device: SlotDevice) -> None:
        """Compare the intervals that the share of time allows, and drop the others."""
        if self.policy == "off":
            return
        while self.while_idle(device):
            pass
        context = self._context
        if context.stopping.is_set():
            return
        free = self._context.ask(
            lambda _again: self._audits.drop_rest(
                self._study.settings.name, self._study.worker.host, _NO_ROOM
            )
        )
        for directory in free:
            free_pins(directory)

    def _compare_first(self, device: SlotDevice, closing: threading.Event) -> None:
        """Compare first intervals until all have been recorded and claimed."""
        study, pause = self._study.settings.name, _FIRST_PAUSE
        try:
            while not closing.is_set() and not self._context.stopping.is_set():
                if self._one(device, first_only=True):
                    continue
                if self._context.ask(lambda _again: self._audits.is_settled(study)):
                    self._compared = True
                    return
                closing.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except BaseException as error:
            # The slots stop, and the run raises the error.
            self._context.abort(error)

    def _one(
        self,
        device: SlotDevice,
        *,
        first_only: bool = False,
        waited: float = 0.0,
    ) -> bool:
        """Claim one interval and compare it; return whether there was one."""
        if self.policy == "off":
            return False
        context, key = self._context, uuid.uuid4().hex
        claim = self._context.ask(
            lambda _again: self._audits.claim(
                self._study.settings.name,
                worker_key=context.stay.key,
                host=self._study.worker.host,
                key=key,
                lease_seconds=context.stay.lease_seconds,
                first_only=first_only,
                unbounded=self.policy == "all",
                waited=0.0 if self.policy == "all" else waited,
            )
        )
        if claim is None:
            return False
        self._compare(claim, device)
        return True

    def _compare(self, claim: AuditClaim, device: SlotDevice) -> None:
        context, began = self._context, time.monotonic()
        launcher = context.runner
        if callable(launcher):
            return
        settings, search = self._study.settings, self._study.search
        authors = functools.cache(lambda: read_authors(launcher, settings, search))
        replay = IntervalReplay(
            claim, settings, launcher, context.stopping, device.visible, authors
        )
        try:
            outcome = replay.outcome()
            found = None if outcome.alike else explain(replay, outcome)
        except DroppedError as reason:
            self._drop(claim, str(reason), time.monotonic() - began)
            return
        except (Interrupted, DatabaseUnavailableError):
            self._give_back(claim)
            return
        except ExecutionError as error:
            if claim.tries < MOST_TRIES:
                self._give_back(claim)
                return
            self._drop(claim, f"{error} ({claim.tries} tries)", time.monotonic() - began)
            return
        except BaseException:
            self._give_back(claim)
            raise
        if found is None:
            self._decide(claim, "alike", time.monotonic() - began)
            return
        self._decide(claim, "differs", time.monotonic() - began, found.to_json())
        self._end_the_run(found.message, found.advice)

    def _end_the_run(self, message: str, advice: str) -> None:
        """Stop every worker of the study, unless differences are accepted."""
        context = self._context
        study = self._study.settings.name
        if self._context.ask(lambda _again: self._audits.exactness(study)).accepted:
            context.tell(Notice(f"exactness is not promised: an audit found that {message}"))
            return
        self._context.ask(lambda _again: self._study.impatient.request_stop(study, "drain"))
        context.abort(ExactnessError(_words(study, message, advice)))

    def _drop(self, claim: AuditClaim, reason: str, seconds: float) -> None:
        self._decide(claim, "dropped", seconds, {"message": reason})
        pinned = claim.pinned
        self._context.tell(
            Notice(
                f"the audit of trial {claim.trial} from step {pinned.from_step} to "
                f"{pinned.to_step} gives no verdict: {reason}"
            )
        )

    def _decide(
        self,
        claim: AuditClaim,
        outcome: AuditOutcome,
        seconds: float,
        report: dict[str, object] | None = None,
    ) -> None:
        try:
            self._context.ask(
                lambda _again: self._audits.decide(claim, outcome, seconds=seconds, report=report)
            )
        except SupersededError as error:
            # Another worker has taken over the audit after this one's lease ended; its verdict counts.
            self._context.tell(Notice(str(error)))
            return
        free_pins(claim.pinned.directory)

    def _give_back(self, claim: AuditClaim) -> None:
        try:
            self._audits.release(claim)
        except DatabaseUnavailableError:
            # The interval becomes free when this worker leaves or its lease ends.
            return

    def _is_drawn(self, number: int) -> bool:
        block = random.Random(f"audit:{self._study.settings.seed}:{number // _EVERY}")  # noqa: S311
        return block.randrange(_EVERY) == number % _EVERY

    def _has_gpu(self, device: SlotDevice) -> bool:
        """Return whether a process that runs beside the trial would share a GPU's memory with it."""
        if device.visible is not None:
            return bool(device.visible)
        if self._gpu is None:
            try:
                self._gpu = any(gpu.id != _NO_GPU for gpu in find_gpus("all"))
            except UsageError:
                self._gpu = False
        return self._gpu


def refuse_inexact(audits: Audits, study: str, *, accept: bool) -> str | None:
    """Refuse to continue a study in which an audit found a difference that was not accepted.

    With ``accept``, differences are accepted from now on.

    Returns:
        The warning to show if a difference was accepted; None without a difference.

    Raises:
        ExactnessError: A difference was not accepted.
    """
    if accept:
        audits.accept_inexact(study)
    exactness = audits.exactness(study)
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
