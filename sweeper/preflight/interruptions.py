"""Where a rehearsed trial is killed, and from which checkpoints it goes on.

State that no checkpoint holds shows only if it was lost, or acted twice, and then acts again before
the end. So a trial is killed not at its checkpoint but after the next epoch's end: what its hooks did
there is done again, which shows what is kept in a file; what is kept in the process is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeper.execution.protocol.messages import Failed
from sweeper.execution.replays import Kill, Replayed

_END = "at an epoch's end"
_MIDDLE = "in the middle of an epoch"


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
        replayed: What its processes said, the last one to the end.
        end: The step at which it is compared.
        died: What became of a process that ended before its time; empty where none did.
    """

    interruption: Interruption
    replayed: Replayed
    end: int
    died: str = ""

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint to compare; None where no process came so far."""
        reached = self.replayed.reached
        return None if reached is None else Path(reached.path)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that each process ran."""
        begins = [0, *(kill.checkpoint for kill in self.interruption.kills)]
        ends = [*(kill.after for kill in self.interruption.kills), self.end]
        return tuple(end - begin for begin, end in zip(begins, ends, strict=True))

    def why_not(self) -> str:
        """Return why there is nothing to compare."""
        failed = self.replayed.end
        if isinstance(failed, Failed):
            what = "resumed" if len(self.replayed.processes) > 1 else "to be killed"
            return f"the trial that was {what} failed: {failed.error}"
        return (
            f"the resumed trial never came to step {self.end}, which the same trial without a kill "
            f"did: its process {self.died or 'ended'}"
        )


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
