"""Replays of a trial or an interval, compared with the kept checkpoints.

`sweeper verify` compares a finished trial, an audit one interval between two of its checkpoints, and
`sweeper check` a shortened trial with the same one, killed and resumed. A value
that differs may be a measured time, which differs in every run. So if the first replay differs in
values that may be excused, a second replay runs up to the last checkpoint that differs. Values in
which the two replays differ are excused, by their paths. The second replay also shows whether the trial
repeats at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.checkpoint.operations import link_checkpoint
from sweeper.checkpoint.reading import read_manifest
from sweeper.records.events import Event
from sweeper.replay.comparison import compare_checkpoints, compare_epochs, tensor_entries
from sweeper.replay.findings import Difference, errors, judge, ranked
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import CheckpointCommitted
from sweeper.run.replays import Replayed, ReplayOrder, run_again
from sweeper.support.paths import Location, RunPaths

Position = tuple[int, int]
"""Step and finished epochs."""

Epochs = Mapping[int, Mapping[str, float]]
"""Metrics by epoch."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Kept checkpoint with which a replay's checkpoint is compared.

    Attributes:
        path: Directory of the checkpoint.
        files: The trial's directory, used if the checkpoint's manifest does not name it.
        damaged: Whether the checkpoint's files do not verify; then only digests are compared.
    """

    path: Location
    files: str
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class ComparedCheckpoint:
    """A replay's checkpoint, compared with the kept one at its position.

    Attributes:
        digest: Digest of the replay's checkpoint.
        tensors: Number of compared tensors.
        differences: All differences.
    """

    digest: str
    tensors: int = 0
    differences: Sequence[Difference] = ()


@dataclass(frozen=True)
class ReplayComparison:
    """Result of a replay, and of a second one if something differed.

    Attributes:
        replayed: Report of the first replay.
        again: Report of the second replay; None if none was needed.
        checkpoints: The first replay's checkpoints, by position.
        epochs: Differences between its metrics and the stored ones.
        repeats: Whether the second replay equals the first; None without a second.
    """

    replayed: Replayed
    again: Replayed | None = None
    checkpoints: Mapping[Position, ComparedCheckpoint] = field(default_factory=dict)
    epochs: Sequence[Difference] = ()
    repeats: bool | None = None

    @property
    def differences(self) -> list[Difference]:
        """Return all differences, the most severe first."""
        found = [each for seen in self.checkpoints.values() for each in seen.differences]
        return ranked([*found, *self.epochs])


@dataclass
class ComparedReplay:
    """Trial or interval to replay and compare.

    Args:
        prepare: Function that prepares a replay below a directory, and returns its order.
        directory: An empty directory. The first replay uses ``first`` in it, the second ``second``.
        references: Kept checkpoints by position; None if only a checkpoint's digest is known.
        launchers: Launchers of the processes, used in turn.
        stopping: Event that ends a replay when it is set.
        objectives: Names of the study's objectives.
        epochs: The stored metrics; None not to compare metrics.
        sides: Names of the trial and its replay in messages.
        tell: Receives progress events.
    """

    prepare: Callable[[Path], ReplayOrder]
    directory: Path
    references: Mapping[Position, Reference | None]
    launchers: Sequence[Launcher]
    stopping: threading.Event
    objectives: Sequence[str]
    epochs: Epochs | None = None
    sides: tuple[str, str] = ("undisturbed", "resumed")
    tell: Callable[[Event], None] = lambda _: None
    _seen: dict[Position, ComparedCheckpoint] = field(default_factory=dict)
    _differing: dict[Position, Path] = field(default_factory=dict)
    _paths: set[str] = field(default_factory=set)

    @property
    def first(self) -> Path:
        """Return the directory of the first replay."""
        return self.directory / "first"

    def run(self) -> ReplayComparison:
        """Replay and compare; replay a second time if a difference may be excused.

        Raises:
            Interrupted: ``stopping`` was set.
            ReplayDiedError: A process died unexpectedly.
            ExecutionError: A process could not be started.
            CheckpointError: A replay's checkpoint cannot be read.
        """
        order = self.prepare(self.first)
        replayed = self._run(replace(order, seen=lambda done: self._see(order, done)), self.first)
        epochs = [] if self.epochs is None else self._compare_epochs(self.epochs, replayed)
        measured = any(each.excusable for each in errors(epochs))
        if not measured and not self._differing:
            return ReplayComparison(replayed, None, self._seen, epochs)
        again, anyway = self._again(None if measured else max(self._differing))
        if self.epochs is not None:
            anyway += self._compare_epochs(_metrics(replayed), again)

        def judged(found: Sequence[Difference]) -> list[Difference]:
            return judge(found, anyway, replayed.authors)

        return ReplayComparison(
            replayed,
            again,
            {
                position: replace(seen, differences=judged(seen.differences))
                for position, seen in self._seen.items()
            },
            judged(epochs),
            repeats=all(each.excusable for each in anyway),
        )

    def _again(self, end: Position | None) -> tuple[Replayed, list[Difference]]:
        """Run the second replay up to ``end`` (None: as far as the first); return how the two differ."""
        second = self.directory / "second"
        order = self.prepare(second)
        anyway: list[Difference] = []

        def compare(committed: CheckpointCommitted) -> None:
            first = self._differing.get((committed.step, committed.epoch))
            if first is not None:
                anyway.extend(
                    compare_checkpoints(
                        first,
                        Path(committed.path),
                        directories=(_files(order, self.first), _files(order, second)),
                        objectives=self.objectives,
                    )
                )

        order = replace(order, seen=compare, ends_at=end or order.ends_at)
        return self._run(order, second), anyway

    def _run(self, order: ReplayOrder, directory: Path) -> Replayed:
        return run_again(order, self.launchers, directory, self.tell, self.stopping)

    def _see(self, order: ReplayOrder, committed: CheckpointCommitted) -> None:
        """Compare a checkpoint of the first replay before the replay deletes it."""
        position, path = (committed.step, committed.epoch), Path(committed.path)
        reference = self.references[position]
        if reference is None:
            self._seen[position] = ComparedCheckpoint(committed.digest)
            return
        kept = read_manifest(reference.path)
        known = kept.origin.directory if kept.origin is not None else ""
        found = compare_checkpoints(
            reference.path,
            path,
            directories=(known or reference.files, _files(order, self.first)),
            objectives=self.objectives,
            sides=self.sides,
            damaged=reference.damaged,
        )
        names = {*tensor_entries(kept), *tensor_entries(read_manifest(path))}
        self._seen[position] = ComparedCheckpoint(committed.digest, len(names), found)
        new = {each.path for each in errors(found)} - self._paths
        # Values that cannot be excused need only their first checkpoint, to show whether they repeat.
        if new and (not self._differing or any(e.excusable and e.path in new for e in found)):
            self._paths |= new
            self._differing[position] = (
                self.directory / "differing" / str(len(self._differing)) / path.name
            )
            link_checkpoint(path, self._differing[position])

    def _compare_epochs(self, stored: Epochs, replayed: Replayed) -> list[Difference]:
        again = _metrics(replayed)
        both = sorted(stored.keys() & again.keys())
        return compare_epochs(
            {epoch: stored[epoch] for epoch in both},
            {epoch: again[epoch] for epoch in both},
            objectives=self.objectives,
            sides=self.sides,
        )


def _metrics(replayed: Replayed) -> Epochs:
    return {number: record.metrics for number, record in replayed.epochs.items()}


def _files(order: ReplayOrder, directory: Path) -> str:
    """Return the trial's directory in the processes of a replay below ``directory``."""
    return str(RunPaths(directory, order.settings.name).trial_files(order.number))
