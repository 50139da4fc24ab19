"""Interruptions of a rehearsed trial: where it is killed, and the comparison of what its runs left.

Two undisturbed runs may differ in what no result depends on, such as a callback that notes the time:
that is a warning. A run that was killed and resumed must not differ in anything from one that was not,
beyond the very paths that differ anyway.

State that no checkpoint holds shows only if it was lost, or acted twice, and then acts again before
the end. So a trial is killed not at its checkpoint but after the next epoch's end: what its hooks did
there is done again, which shows what is kept in a file; what is kept in the process is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.checks.judging import Judgement
from sweeper.errors import CheckpointError
from sweeper.replay.comparison import compare_checkpoints
from sweeper.replay.findings import Difference, errors, judge
from sweeper.replay.reports import Authored, StudyAuthors
from sweeper.run.protocol.messages import Failed
from sweeper.run.replays import Kill, Replayed

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
        """Return the kills, for a person."""
        return " and again after step ".join(f"{kill.after}" for kill in self.kills)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Result of one interruption.

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
        """Return the checkpoint to compare; None where no process came so far."""
        reached = self.replayed.reached
        return None if reached is None else Path(reached.path)

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps that each process ran."""
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
            f"the resumed trial did not reach step {self.end}, which the same trial without a "
            f"kill reached: its process {self.died or 'ended'}"
        )


def interruptions(end: int, epoch_steps: int) -> tuple[Interruption, ...]:
    """Return the interruptions of a trial that is compared at step ``end``.

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


_SHOWN = 3


def judge_ends(
    first: Path, second: Path, authors: StudyAuthors, objectives: Sequence[str], to: Judgement
) -> list[Difference]:
    """Report what differs between two undisturbed runs although all steps repeat; return it."""
    found = compare_checkpoints(
        first,
        second,
        directories=(_directory(first), _directory(second)),
        objectives=objectives,
        sides=("in the one", "in the other"),
    )
    for each in found:
        owner = _owner(each, authors)
        to.find(
            "warning" if each.excusable else "error",
            "determinism",
            f"{each.name} differs between two runs of the same trial ({each.how})"
            + (
                "; in the steps of the check the model did not depend on it"
                if each.excusable
                else "; it is the trial's result, so it must repeat"
            ),
            authors.model.line if owner is None else owner.line,
        )
    return found


def judge_interruptions(
    whole: Path,
    resumed: Sequence[Resumed],
    anyway: Sequence[Difference],
    authors: StudyAuthors,
    to: Judgement,
    *,
    objectives: Sequence[str] = (),
) -> None:
    """Compare the runs that were killed and resumed with one that was not, at the same step.

    Of several that end otherwise the first is named: what it lost, the others lost too.
    """
    for each in resumed:
        own = Judgement()
        if each.checkpoint is None:
            own.find("error", "resume", each.why_not(), authors.model.line)
        else:
            try:
                found = compare_checkpoints(
                    whole,
                    each.checkpoint,
                    directories=(_directory(whole), _directory(each.checkpoint)),
                    objectives=objectives,
                )
            except CheckpointError as error:
                own.find("error", "resume", str(error), authors.model.line)
            else:
                judge_resume(
                    found,
                    anyway,
                    authors,
                    own,
                    interruption=each.interruption,
                    step=each.end,
                )
        to.held += own.held
        if not any(finding.check == "resume" for finding in to.findings):
            to.findings += own.findings


def judge_resume(
    compared: Sequence[Difference],
    anyway: Sequence[Difference],
    authors: StudyAuthors,
    to: Judgement,
    *,
    interruption: Interruption,
    step: int,
) -> None:
    """Report the differences between a run that was killed and resumed and one that was not.

    Args:
        compared: All of them.
        anyway: Those between two undisturbed runs.
        authors: What the user wrote.
        to: Receives one finding, or that the trial is the same.
        interruption: How it was killed.
        step: Where the two were compared.
    """
    found = errors(judge(compared, anyway, lambda: authors))
    if not found:
        to.held.append(
            f"killed (SIGKILL) after step {interruption.shown} and resumed {interruption.where} in a "
            f"fresh process, the trial is bit-identical at step {step}: weights, optimizer, "
            "metrics, history, callbacks, generators"
        )
        return
    owner = next(filter(None, (_owner(each, authors) for each in found)), None)
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    own = f"; look in {', '.join(authors.users)}" if authors.users else ""
    line = next((each.line for each in authors.callbacks if each.hooks), authors.model.line)
    to.find(
        "error",
        "resume",
        f"killed after step {interruption.shown} and resumed {interruption.where}, the trial "
        f"differs from the same trial without the kill: at step {step} these differ: "
        f"{'; '.join(map(str, found[:_SHOWN]))}{more}. Some state that training changes is not in "
        "checkpoints (in a module variable, the environment, a file, an object of a "
        f"library){own}; keep it in the callback or model, or register it with Trial.track",
        line if owner is None or owner.line is None else owner.line,
    )


def _directory(checkpoint: Path) -> str:
    """Return the directory that the trial was given, beside the attempt that took ``checkpoint``."""
    trial = checkpoint.parents[2]
    rehearsed = trial / "files-0"
    return str(rehearsed if rehearsed.is_dir() else trial / "files")


def _owner(difference: Difference, authors: StudyAuthors) -> Authored | None:
    """Return the callback that a difference is in, as the user wrote it."""
    owners = [c for c in authors.callbacks if difference.name.startswith(f"callback {c.name}")]
    return max(owners, key=lambda callback: len(callback.name), default=None)
