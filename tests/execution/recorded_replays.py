"""Replays of trials that are run once, for tests of what they are compared with."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.execution.launch.trial_process import Launcher
from sweeper.execution.protocol.messages import CheckpointCommitted
from sweeper.execution.replays import Replayed, ReplayOrder, run_again


@dataclass(frozen=True)
class _Recorded:
    """What an order came to: where its files are, the checkpoints that it told of, its report."""

    order: ReplayOrder
    directory: Path
    committed: list[CheckpointCommitted]
    replayed: Replayed


@dataclass
class RecordedReplays:
    """Stands for `run_again`; an order that equals an earlier one is given its files and its report.

    Attributes:
        directory: Where the files are kept.
    """

    directory: Path
    known: list[_Recorded] = field(default_factory=list)

    def run(self, order: ReplayOrder, launcher: Launcher, directory: Path, *more: Any) -> Replayed:
        asked = replace(order, seen=_nobody, keep_all=True)
        found = next((each for each in self.known if each.order == asked), None)
        if found is None:
            committed: list[CheckpointCommitted] = []
            kept = self.directory / str(len(self.known))
            replayed = run_again(replace(asked, seen=committed.append), launcher, kept, *more)
            found = _Recorded(asked, kept, committed, replayed)
            self.known.append(found)
        shutil.copytree(found.directory, directory, dirs_exist_ok=True)
        for each in found.committed:
            path = directory / Path(each.path).relative_to(found.directory)
            order.seen(replace(each, path=str(path)))
        return found.replayed


def _nobody(_committed: CheckpointCommitted) -> None:
    """Stand where an order needs somebody to tell."""
