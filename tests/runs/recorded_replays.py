"""Replays of trials that are run once, for tests of what they are compared with."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.run.protocol.messages import CheckpointCommitted
from sweeper.run.replays import Replayed, ReplayOrder, run_again


@dataclass(frozen=True)
class _Recorded:
    """What an order came to: where its files are, the checkpoints that it told of, its report."""

    order: ReplayOrder
    directory: Path
    committed: list[CheckpointCommitted]
    replayed: Replayed


@dataclass
class RecordedReplays:
    """Stands for `run_again`; an order that equals an earlier one is given its files and its report."""

    directory: Path
    known: list[_Recorded] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, order, launchers, directory, *more):
        asked = replace(order, seen=_nobody)
        found = next((each for each in self.known if each.order == asked), None)
        if found is None:
            return self.run_anew(order, launchers, directory, *more)
        return self._given(found, order, directory)

    def run_anew(self, order, launchers, directory, *more):
        """The same, and run whatever was recorded."""
        asked = replace(order, seen=_nobody)
        committed = []
        kept = self.directory / str(next(self._numbers))
        replayed = run_again(replace(asked, seen=committed.append), launchers, kept, *more)
        found = _Recorded(asked, kept, committed, replayed)
        self.known.append(found)
        return self._given(found, order, directory)

    @staticmethod
    def _given(found, order, directory):
        shutil.copytree(found.directory, directory, dirs_exist_ok=True)
        for each in found.committed:
            path = directory / Path(each.path).relative_to(found.directory)
            order.seen(replace(each, path=str(path)))
        return found.replayed


def _nobody(_committed):
    """Stand where an order needs somebody to tell."""
