"""Where a rehearsed trial is killed, and from which checkpoints it goes on.

State that no checkpoint holds shows only if it was lost, or acted twice, and then acts again before
the end. So a trial is killed not at its checkpoint but after the next epoch's end: what its hooks did
there is done again, which shows what is kept in a file; what is kept in the process is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.definition import StudySettings
from sweeper.execution.protocol.rehearsals import Rehearsal
from sweeper.execution.protocol.replays import Replay
from sweeper.execution.rehearsals import Received, rehearsal_assignment

_END = "at an epoch's end"
_MIDDLE = "in the middle of an epoch"


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Attributes:
        checkpoint: The step of the checkpoint that the next attempt goes on from.
        after: The step after which the process is killed.
    """

    checkpoint: int
    after: int


@dataclass(frozen=True, slots=True)
class Interruption:
    """A trial that is killed, once or more often, and resumed each time.

    Attributes:
        directory: The directory of its files, among those of the check.
        where: Where its checkpoints were, for a person.
        kills: In order.
    """

    directory: str
    where: str
    kills: tuple[Kill, ...]

    @property
    def shown(self) -> str:
        """The kills, for a person."""
        return " and again after step ".join(f"{kill.after}" for kill in self.kills)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What came of one interruption.

    Attributes:
        interruption: It.
        attempts: What each process said, the last one to the end.
        end: The step at which it is compared.
    """

    interruption: Interruption
    attempts: tuple[Received, ...]
    end: int

    @property
    def checkpoint(self) -> Path | None:
        """What is compared; None where no process came so far."""
        kept = self.attempts[-1].checkpoints.get(self.end)
        return None if kept is None else kept[0]

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that each process ran."""
        begins = [0, *(kill.checkpoint for kill in self.interruption.kills)]
        ends = [*(kill.after for kill in self.interruption.kills), self.end]
        return tuple(end - begin for begin, end in zip(begins, ends, strict=True))

    def why_not(self) -> str:
        """Why there is nothing to compare."""
        for number, outcome in enumerate(self.attempts):
            if outcome.failed is not None:
                what = "resumed" if number else "to be killed"
                return f"the trial that was {what} failed: {outcome.failed.error}"
        status = self.attempts[-1].status
        how = "ended" if status is None else status.describe()
        return (
            f"the resumed trial never came to step {self.end}, which the same trial without a kill "
            f"did: its process {how}"
        )


def interrupt(
    interruption: Interruption,
    settings: StudySettings,
    directory: Path,
    *,
    rehearsal: Rehearsal,
    end: int,
    drive: Callable[[int, Any, int | None], Received],
) -> Resumed:
    """Run a trial as ``interruption`` says, each attempt in a fresh process.

    Args:
        interruption: Where to kill it.
        settings: The study's.
        directory: Of the check.
        rehearsal: How short its epochs are.
        end: The step to take the last checkpoint at.
        drive: Runs an attempt: its number from 0, its assignment, and the step to end at.
    """
    attempts = []
    for number, kill in enumerate((*interruption.kills, Kill(end, 0))):
        assignment = rehearsal_assignment(
            settings,
            directory / interruption.directory,
            rehearsal,
            attempt=number + 1,
            replay=Replay((), also_after=kill.checkpoint, die_after=kill.after or None),
        )
        outcome = drive(number, assignment, None if kill.after else end)
        attempts.append(outcome)
        if outcome.failed is not None:
            break
    return Resumed(interruption, tuple(attempts), end)


def interruptions(end: int, epoch_steps: int) -> tuple[Interruption, ...]:
    """The interruptions of a trial that is compared at step ``end``.

    Args:
        end: At least 2.
        epoch_steps: Steps of its epochs.

    Returns:
        One that goes on at the end of an epoch, and one that goes on twice in the middle of an
        epoch, in the first and in the second; as far as there are such positions before ``end``.
    """
    half = max(1, epoch_steps // 2)
    if end <= epoch_steps + 1:
        before = max(1, end // 2)
        where = _MIDDLE if epoch_steps > 1 else _END
        return (Interruption("interrupted", where, (Kill(before, before + 1),)),)
    last = min(end, 2 * epoch_steps + 1)
    found = [Interruption("interrupted-end", _END, (Kill(epoch_steps, last),))]
    if epoch_steps > 1:
        kills = [Kill(half, epoch_steps + 1), Kill(epoch_steps + half, last)]
        reached = tuple(kill for kill in kills if kill.checkpoint < kill.after)
        found.append(Interruption("interrupted-middle", _MIDDLE, reached))
    return tuple(found)
