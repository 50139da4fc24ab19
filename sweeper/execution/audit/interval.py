"""One interval of a trial, resumed in a fresh process and compared where it ends.

A checkpoint that does not verify costs the audit, never the trial: what was pinned is read whole
before a process is started. Beside the variables and generators a checkpoint holds what callbacks
keep, and that may be a clock's: where something differs, a second replay is run, and a path at which
the two replays differ is excused.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.checkpoints.reading import load_checkpoint, read_manifest
from sweeper.checkpoints.store import CheckpointStore
from sweeper.checkpoints.values import relocated
from sweeper.definition import StudySettings
from sweeper.errors import CheckpointError
from sweeper.execution.launch.conversation import Stopping
from sweeper.execution.launch.trial_process import Launcher
from sweeper.execution.protocol.messages import Failed
from sweeper.execution.replays import Answers, Replayed, ReplayOrder, run_again
from sweeper.independence.reports import StudyAuthors
from sweeper.paths import RunPaths
from sweeper.replay.comparison import compare_checkpoints
from sweeper.replay.findings import Difference, errors, judge
from sweeper.storage.repository import AuditClaim
from sweeper.training.fingerprint import differences

_MOST_FILES = 512 << 20
"""Bytes of a trial's own directory that a replay is given a copy of."""


class DroppedError(Exception):
    """The interval cannot be compared; why, in a sentence. It says nothing of the trial."""


@dataclass(frozen=True)
class Outcome:
    """What one interval's replays showed.

    Attributes:
        differences: Between the trial and the resumed one, the most severe first; what two replays
            have otherwise is excused among them.
        other_end: How it ended otherwise than at the checkpoint, in a sentence; None where it
            came there.
        repeats: Whether a second replay was the same as the first; None where there was none.
        steps_per_epoch: As the replay said.
    """

    differences: Sequence[Difference] = ()
    other_end: str | None = None
    repeats: bool | None = None
    steps_per_epoch: int = 0

    @property
    def alike(self) -> bool:
        """Whether the resumed trial is the same, bit for bit."""
        return self.other_end is None and not errors(self.differences)


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
        try:
            return self._compared()
        except OSError as error:
            msg = f"it could not be replayed: {error}"
            raise DroppedError(msg) from error
        finally:
            self.clear()

    def clear(self) -> None:
        """Remove what the replays wrote."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def run(
        self, positions: Sequence[tuple[int, int]], *, resumed: bool = True
    ) -> tuple[Replayed, Path]:
        """Run the trial to the last of ``positions``, a step and its finished epochs each.

        Args:
            positions: Where to take checkpoints, in order.
            resumed: Whether to begin with the pinned checkpoint, or else with the trial.

        Returns:
            What was said, and where its checkpoints are.

        Raises:
            Interrupted, ExecutionError, DroppedError: See `outcome`.
        """
        claim = self.claim
        self._copies += 1
        directory = self._directory / f"{self._copies}"
        starts_from = None
        if resumed and claim.pinned.from_path is not None:
            starts_from = self._start(directory, Path(claim.pinned.from_path))
            self._copy_files(directory)
        order = ReplayOrder(
            settings=replace(self.settings, epochs=claim.epochs or self.settings.epochs),
            number=claim.trial,
            answers=Answers(claim.params, claim.distributions),
            checkpoints=tuple(positions),
            starts_from=starts_from,
            ends_at=positions[-1],
            keep_all=True,
            devices=self.devices,
        )
        replayed = run_again(order, [self.launcher], directory, lambda _: None, self.stopping)
        return replayed, RunPaths(directory, claim.study).checkpoints(claim.trial, 1)  # type: ignore[return-value]

    def compare(self, first: Path, second: Path) -> list[Difference]:
        """Return the differences between two checkpoints of the trial, its own or a replay's."""
        return compare_checkpoints(
            first,
            second,
            directories=(self._files_of(first), self._files_of(second)),
            objectives=[objective.name for objective in self.settings.objectives],
        )

    def _compared(self) -> Outcome:
        pinned = self.claim.pinned
        position = (pinned.to_step, pinned.to_epoch)
        replayed, _ = self.run([position])
        self._check_surroundings(replayed)
        if replayed.reached is None:
            return self._ended_otherwise(replayed)
        first = Path(replayed.reached.path)
        found = self.compare(Path(pinned.to_path), first)
        if not errors(found):
            return Outcome(found, steps_per_epoch=replayed.steps_per_epoch)
        again, _ = self.run([position])
        if again.reached is None:
            return self._ended_otherwise(again)
        anyway = self.compare(first, Path(again.reached.path))
        return Outcome(
            differences=judge(found, anyway, self.authors),
            repeats=all(each.excusable for each in anyway),
            steps_per_epoch=replayed.steps_per_epoch,
        )

    def _ended_otherwise(self, replayed: Replayed) -> Outcome:
        end = replayed.end
        if isinstance(end, Failed):
            if end.fault == "memory" or (
                end.fault == "environment" and not end.error.startswith("RestoreError")
            ):
                raise DroppedError(end.error)
            return Outcome(other_end=f"fails: {end.error}")
        step = getattr(end, "step", None)
        return Outcome(other_end=f"ends at step {step} and takes no checkpoint there")

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
        """The trial's own directory, as its process was given it."""
        return Path(self.claim.pinned.directory).parents[2] / "files"

    def _files_of(self, checkpoint: Path) -> str:
        """The trial's directory as the process knew it that took ``checkpoint``."""
        if checkpoint.is_relative_to(self._directory):
            return str(checkpoint.parents[2] / "files")
        return str(self._files)

    def _start(self, directory: Path, path: Path) -> Path:
        """The directory with the checkpoint to resume, its paths brought to the replay's own.

        What a callback keeps of the trial's directory would lead back there, and have the replay
        write into it.
        """
        loaded = load_checkpoint(path)
        files = RunPaths(directory, self.claim.study).trial_files(self.claim.trial)
        # Where the trial went on after its study was moved, its checkpoint may lead to the old directory.
        written = "" if loaded.origin is None else loaded.origin.directory
        state = relocated(loaded.state, written or str(self._files), str(files))
        if state == loaded.state:
            return path.parent
        start = directory / "start"
        CheckpointStore(start).commit(
            _snapshot(loaded, state), trained_seconds=loaded.trained_seconds
        )
        return start

    def _copy_files(self, directory: Path) -> None:
        """Give the replay what lies in the trial's directory now, as a resume would find it."""
        source = self._files
        target = RunPaths(directory, self.claim.study).trial_files(self.claim.trial)
        if not source.is_dir():
            return
        size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
        if size > _MOST_FILES:
            msg = f"the trial's directory {source} holds {size >> 20} MB, too much to copy"
            raise DroppedError(msg)
        try:
            shutil.copytree(source, target, symlinks=True)
        except shutil.Error as error:
            # A file that the trial replaced meanwhile is one that a resume might not find either.
            if not target.is_dir():
                raise DroppedError(str(error)) from error


def _check(path: Path) -> None:
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        msg = f"what was pinned for it cannot be used: {error}"
        raise DroppedError(msg) from error


def _snapshot(loaded: LoadedCheckpoint, state: dict[str, Any]) -> Snapshot:
    return Snapshot(
        step=loaded.step,
        epoch=loaded.epoch,
        tensors=loaded.tensors,
        state=state,
        metrics=loaded.metrics,
        digest_names=read_manifest(loaded.path).digest_names,
    )
