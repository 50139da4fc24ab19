"""What runs of one trial left behind: their last checkpoints, compared, as findings of a check.

Two undisturbed runs may differ in what no result depends on, such as a callback that notes the time:
that is a warning. A run that was killed and resumed must not differ in anything from one that was not,
beyond the very paths that differ anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeper.errors import CheckpointError
from sweeper.preflight.interruptions import Interruption, Resumed
from sweeper.preflight.judging import Judgement
from sweeper.replay.comparison import compare_checkpoints
from sweeper.replay.findings import Difference, errors, judge
from sweeper.replay.reports import Authored, StudyAuthors

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
                "; nothing that the model learns depended on it in the steps that were run"
                if each.excusable
                else "; a trial's result is this, so make it repeat"
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
        f"killed after step {interruption.shown} and resumed {interruption.where}, the trial is not "
        f"what it was without the kill: at step {step} these differ: "
        f"{'; '.join(map(str, found[:_SHOWN]))}{more}. Something that training changes is kept where no "
        f"checkpoint finds it (a module variable, the environment, a file, an object of a library){own}; "
        "keep it in the callback or model, or register it with Trial.track",
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
