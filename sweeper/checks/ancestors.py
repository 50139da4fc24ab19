"""Start of a branch's replay: from its replayed ancestors, or from the parent's kept checkpoint."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints
from sweeper.definition.definition import StudySettings
from sweeper.errors import CheckpointError, SweeperError
from sweeper.records.ancestry import ParentRecord
from sweeper.records.events import Event
from sweeper.records.results import TrialRecord
from sweeper.run.launch.trial_process import Launcher, Stopping
from sweeper.run.replays import Answers, Kill, ReplayOrder, run_again
from sweeper.run.trial.pinning import link_checkpoint
from sweeper.support.paths import Location, RemotePath, RunPaths

_LEAST_STEPS_TO_KILL = 3
STOPPED = "the verification was stopped; verdicts until then are stored"


def where_to_kill(seed: int, number: int, steps: int, start: int = 0) -> Kill | None:
    """Return the step at which the replay of trial ``number`` is killed; None if the trial is too short.

    Its steps are drawn from ``seed``, so that a test can be repeated. A checkpoint, mostly in the
    middle of an epoch, precedes the kill.

    Args:
        seed: Any whole number.
        number: The trial's.
        steps: The step at its end.
        start: The step that it begins at.
    """
    steps -= start
    if steps < _LEAST_STEPS_TO_KILL:
        return None
    drawing = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    die = drawing.randrange(2, steps)
    return Kill(start + drawing.randrange(1, die), start + die)


class AncestorDiffersError(Exception):
    """A difference between a replayed ancestor and the checkpoint from which the branch began."""


@dataclass(frozen=True)
class Ancestors:
    """Source of the checkpoint with which a branch's replay begins.

    Attributes:
        settings: The study's.
        paths: Where its files are.
        trial: Function that returns a trial of the study by its number.
        launcher: Starts the processes.
        tell: Called with progress events.
        stopping: Event that ends a replay.
        kept: Whether to begin with the parent's stored checkpoint instead of replaying ancestors.
    """

    settings: StudySettings
    paths: RunPaths
    trial: Callable[[int], TrialRecord]
    launcher: Launcher
    tell: Callable[[Event], None]
    stopping: Stopping
    kept: bool = False

    def provide(self, record: TrialRecord, directory: Path) -> None:
        """Put the checkpoint with which ``record`` begins below ``directory``, if it is a branch.

        Raises:
            AncestorDiffersError: It differs from the one with which the branch began.
            Interrupted, ExecutionError: A replay was stopped, or could not be run.
            CheckpointError: The stored checkpoint cannot be read.
        """
        parent = record.parent
        if parent is not None and self.kept:
            self._provide_kept(record, directory)
        elif parent is not None:
            self._provide_again(record, parent, directory)

    def _provide_again(self, record: TrialRecord, parent: ParentRecord, directory: Path) -> None:
        before = self.trial(parent.number)
        self.provide(before, directory)
        position = (parent.step, parent.epoch)
        order = ReplayOrder(
            # It may have been extended before the branch was taken.
            settings=replace(self.settings, epochs=before.length or self.settings.epochs),
            number=before.number,
            answers=answers_of(before),
            checkpoints=(position,),
            ends_at=position,
            keep_all=True,
            parent=before.parent,
            when_stopped=STOPPED,
        )
        again = run_again(order, [self.launcher], directory, self.tell, self.stopping)
        if again.reached is None:
            msg = (
                f"trial {before.number}, run again, does not reach step {parent.step}, where this "
                "branch begins"
            )
            raise AncestorDiffersError(msg)
        if again.reached.digest != parent.digest:
            msg = (
                f"trial {before.number}, run again, has the digest {again.reached.digest} at step "
                f"{parent.step}, and this branch began from {parent.digest}"
            )
            raise AncestorDiffersError(msg)
        path, own = Path(again.reached.path), RunPaths(directory, self.settings.name)
        link_checkpoint(path, Path(str(own.branch_start(record.number))) / path.name)
        self._copy_files(own.trial_files(before.number), own.trial_files(record.number))

    def _provide_kept(self, record: TrialRecord, directory: Path) -> None:
        start = self.paths.branch_start(record.number)
        if isinstance(start, RemotePath):
            msg = f"{start} is in an object store; verify without --from-parent"
            raise SweeperError(msg)
        found = [path for path in list_checkpoints(start) if _is_at(path, record)]
        parent = 0 if record.parent is None else record.parent.number
        for kept in sorted(self.paths.trial(parent).glob("attempt-*/checkpoints")):
            # A population's member begins where its parent ended, of which there is no copy.
            found += [path for path in list_checkpoints(kept) if _is_at(path, record)]
        if not found:
            msg = (
                f"{start} has no checkpoint from which trial {record.number} can begin; verify it "
                "without --from-parent, which runs its ancestors again"
            )
            raise CheckpointError(msg)
        path, own = Path(str(found[0])), RunPaths(directory, self.settings.name)
        link_checkpoint(path, Path(str(own.branch_start(record.number))) / path.name)
        source = self.paths.trial_files(record.number)
        self._copy_files(source, own.trial_files(record.number))

    @staticmethod
    def _copy_files(source: Path, target: Path) -> None:
        if source.is_dir() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target, symlinks=True)


def _is_at(path: Location, record: TrialRecord) -> bool:
    name = CheckpointName.parse(path.name)
    return name is not None and record.parent is not None and name.step == record.parent.step


def answers_of(record: TrialRecord) -> Answers:
    """Return a trial's parameters with their ranges, for its replay; a branch has its parent's ranges."""
    parent = record.parent
    return Answers(record.params, record.distributions if parent is None else parent.distributions)
