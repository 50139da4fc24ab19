"""Replays of trials that are run once, for tests of what they are compared with."""

from __future__ import annotations

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
        found = next((each for each in self.known if each.order == order), None)
        if found is None:
            return self.run_anew(order, launchers, directory, *more)
        return self._given(found, directory)

    def run_anew(self, order, launchers, directory, *more):
        """The same, and run whatever was recorded."""
        kept = self.directory / str(next(self._numbers))
        found = _Recorded(order, kept, run_again(order, launchers, kept, *more))
        self.known.append(found)
        return self._given(found, directory)

    @staticmethod
    def _given(found, directory):
        shutil.copytree(found.directory, directory, dirs_exist_ok=True)
        checkpoints = {
            position: replace(
                each, path=str(directory / Path(each.path).relative_to(found.directory))
            )
            for position, each in found.replayed.checkpoints.items()
        }
        own = directory / Path(found.replayed.directory).relative_to(found.directory)
        return replace(found.replayed, checkpoints=checkpoints, directory=str(own))
