"""One interval of a trial, verified: resumed in a fresh process and compared where it ends.

A checkpoint that does not verify costs the audit, never the trial: what was pinned is read whole
before a process is started. The rest is a verification as any other
(`sweeper.run.compared_replays`), from a pinned checkpoint to a pinned one.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint
from sweeper.db.repository import AuditClaim
from sweeper.definition.definition import StudySettings
from sweeper.errors import CheckpointError, ExecutionError
from sweeper.replay.comparison import compare_checkpoints
from sweeper.replay.findings import Difference, errors
from sweeper.replay.reports import StudyAuthors
from sweeper.run.compared_replays import ComparedReplay, Position, Reference, ReplayComparison
from sweeper.run.launch.trial_process import Launcher, Stopping
from sweeper.run.protocol.messages import Failed
from sweeper.run.replays import Answers, Replayed, ReplayOrder, run_again
from sweeper.support.paths import RunPaths
from sweeper.train.fingerprint import differences

_MOST_FILES = 512 << 20
"""Bytes of a trial's own directory that a replay is given a copy of."""

_MOST_STEPS = 5000
"""A trial is run again from its beginning to find the first step only if that is no farther."""

_MOST_COMPARED = 24
"""So many checkpoints a replay takes on the way, to find the first step."""

_ROUNDS = 2


class DroppedError(Exception):
    """The interval cannot be compared; why, in a sentence. It says nothing of the trial."""


@dataclass(frozen=True)
class Outcome:
    """Result of one interval's replays.

    Attributes:
        comparison: The replays, and what differs between the trial and the resumed one.
        other_end: How it ended otherwise than at the checkpoint, in a sentence; None where it
            came there.
    """

    comparison: ReplayComparison
    other_end: str | None = None

    @property
    def alike(self) -> bool:
        """Return whether the resumed trial is the same, bit for bit."""
        return self.other_end is None and not errors(self.comparison.differences)


@dataclass
class IntervalReplay:
    """Replays one claimed interval.

    Args:
        claim: The interval.
        settings: The study's.
        launcher: Starts its processes.
        stopping: Ends a replay when it is set.
        devices: What its processes see of the machine's GPUs; None for all.
        authors: Returns what the user wrote; None where that cannot be read.
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
        """Replay and compare.

        Raises:
            DroppedError: What was pinned is damaged or gone, or nothing can be said of it here.
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
            directory: Is given a copy of the trial's own files, where the trial is resumed.
            positions: Where to take checkpoints, in order.
            resumed: Whether to begin with the pinned checkpoint, or else with the trial.

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
        """Return the first step at which the resumed trial differs, as far as a few replays tell.

        Each time the interval is run twice, with a checkpoint at every so many steps: once resumed,
        once from the trial's beginning.

        Args:
            comparison: Its comparison; None is returned where the trial does not repeat.

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
        """Return by step whether a resumed run and one from the beginning differ in one of ``paths``."""
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
        """Remove what the replays wrote."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def objectives(self) -> list[str]:
        """Return the study's."""
        return [objective.name for objective in self.settings.objectives]

    def _check_surroundings(self, replayed: Replayed) -> None:
        """Elsewhere, or with other code, another result would be no wonder."""
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
        """Return the trial's own directory, as its process was given it."""
        return Path(self.claim.pinned.directory).parents[2] / "files"

    def _copy_files(self, directory: Path) -> None:
        """Give the replay what lies in the trial's directory now, as a resume would find it."""
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
            # A file that the trial replaced meanwhile is one that a resume might not find either.
            if not target.is_dir():
                raise DroppedError(str(error)) from error


def _other_end(replayed: Replayed) -> str:
    end = replayed.end
    if not isinstance(end, Failed):
        return f"ends at step {getattr(end, 'step', None)} without a checkpoint there"
    if end.fault == "memory" or (
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
    """A difference, ready to be reported and stored.

    Attributes:
        message: In one sentence, to stand after "an audit found that".
        first: The first value that differs; None where it ended otherwise.
        first_step: The first step at which the resumed trial is known to be another one.
        repeats: Whether a second replay was the same as the first; None where there was none.
        written: The callbacks that the user wrote, each with its line.
    """

    message: str
    first: Difference | None
    first_step: int | None
    repeats: bool | None
    written: tuple[str, ...]

    @property
    def advice(self) -> str:
        """Probable causes, and what to do."""
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
    """Return what ``outcome``, which is not alike, shows.

    One throwaway process reads the study's code, to name the user's own callbacks.

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
    """Return the first difference, and the first ones whose values are short enough to be read."""
    short = [d for d in differences[1:] if not d.how.startswith("differs ")]
    return [*differences[:1], *short[: _SHOWN - 1]]
