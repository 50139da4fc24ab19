"""Replays of trials that are run once, for tests of what they are compared with."""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.run.replays import Replayed, ReplayOrder, run_again


@dataclass(frozen=True)
class _Recorded:
    """What an order came to: where its files are, and its report."""

    order: ReplayOrder
    directory: Path
    replayed: Replayed


@dataclass
class RecordedReplays:
    """Stands for `run_again`; an order that equals an earlier one is given its files and its report."""

    directory: Path
    known: list[_Recorded] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, order, launchers, directory, *more):
        record = next((replay for replay in self.known if replay.order == order), None)
        if record is None:
            return self.run_anew(order, launchers, directory, *more)
        return self._given(record, directory)

    def run_anew(self, order, launchers, directory, *more):
        """The same, and run whatever was recorded."""
        target = self.directory / str(next(self._numbers))
        record = _Recorded(order, target, run_again(order, launchers, target, *more))
        self.known.append(record)
        return self._given(record, directory)

    @staticmethod
    def _given(record, directory):
        shutil.copytree(record.directory, directory, dirs_exist_ok=True)
        checkpoints = {
            position: replace(
                checkpoint,
                path=directory / checkpoint.path.relative_to(record.directory),
            )
            for position, checkpoint in record.replayed.checkpoints.items()
        }
        replay_directory = directory / Path(record.replayed.directory).relative_to(record.directory)
        return replace(record.replayed, checkpoints=checkpoints, directory=str(replay_directory))
