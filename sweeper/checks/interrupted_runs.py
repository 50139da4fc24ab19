"""Interruptions of a rehearsed trial: steps of the kills, and comparison of the final states.

Two uninterrupted runs may differ in values on which no result depends, such as times that a
callback records: that is a warning. A run that was killed and resumed may differ from one that was
not only in the same paths.

State outside of checkpoints has an effect only if it was lost or changed twice, and is used again
before the end. So a trial is killed not at its checkpoint but after the next epoch's end: the hooks
of that end run again, which changes state in a file twice; state in the process is lost.
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
    """An interruption of a trial: one or more kills, each followed by a resume.

    Attributes:
        directory: Name of the directory of its files.
        where: Position of its checkpoints, for the user.
        kills: The steps of the kills, in order.
    """

    directory: str
    where: str
    kills: tuple[Kill, ...]

    @property
    def shown(self) -> str:
        """Return the steps of the kills, for the user."""
        return " and again after step ".join(f"{kill.after}" for kill in self.kills)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Result of one interruption.

    Attributes:
        interruption: The interruption.
        replayed: Records of its processes; the last one trained to the end.
        end: The step of the comparison.
        died: How a process ended too early; empty if none did.
    """

    interruption: Interruption
    replayed: Replayed
    end: int
    died: str = ""

    @property
    def checkpoint(self) -> Path | None:
        """Return the checkpoint to compare; None if no process reached it."""
        reached = self.replayed.reached
        return None if reached is None else Path(reached.path)

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps that each process ran."""
        begins = [0, *(kill.checkpoint for kill in self.interruption.kills)]
        ends = [*(kill.after for kill in self.interruption.kills), self.end]
        return tuple(end - begin for begin, end in zip(begins, ends, strict=True))

    def why_not(self) -> str:
        """Return the reason for which there is nothing to compare."""
        failed = self.replayed.end
        if isinstance(failed, Failed):
            what = "resumed" if len(self.replayed.processes) > 1 else "to be killed"
            return f"the trial that was {what} failed: {failed.error}"
        return (
            f"the resumed trial did not reach step {self.end}, which the same trial without a "
            f"kill reached: its process {self.died or 'ended'}"
        )


def interruptions(end: int, epoch_steps: int) -> tuple[Interruption, ...]:
    """Return the interruptions of a trial that ends at step ``end``.

    Args:
        end: At least 2.
        epoch_steps: Steps of its epochs.

    Returns:
        One with a resume at the end of an epoch, and one with two resumes in the middle of an
        epoch, the first and the second; as far as such positions exist before ``end``.
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
    """Report and return differences between two uninterrupted runs whose steps all repeat."""
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
    """Compare runs that were killed and resumed with an uninterrupted one, at the same step.

    Only the first that differs is reported, because the others lost the same state.
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
    """Report the differences between a run that was killed and resumed and an uninterrupted one.

    Args:
        compared: All differences.
        anyway: Differences between two uninterrupted runs.
        authors: The user's code.
        to: Receives one finding, or that the trial is equal.
        interruption: The kills.
        step: The step of the comparison.
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
    """Return the trial's directory, by the place of ``checkpoint``."""
    trial = checkpoint.parents[2]
    rehearsed = trial / "files-0"
    return str(rehearsed if rehearsed.is_dir() else trial / "files")


def _owner(difference: Difference, authors: StudyAuthors) -> Authored | None:
    """Return the callback in which a difference is, if the user wrote it."""
    owners = [c for c in authors.callbacks if difference.name.startswith(f"callback {c.name}")]
    return max(owners, key=lambda callback: len(callback.name), default=None)
