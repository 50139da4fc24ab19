"""Findings of `sweeper check`: an error that ends a trial, and what differs between its two replays.

The second replay is killed after a checkpoint and resumed. What differs before the checkpoint is
nondeterministic; what differs after it is nondeterministic, too, or was lost: a third replay, killed in the
same way, tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sweeper.replay.findings import Difference, errors
from sweeper.replay.reports import Authored, Finding, Level, Line, StudyAuthors
from sweeper.run.compared_replays import ReplayComparison
from sweeper.run.protocol.messages import Failed, Finished, PrunedHere
from sweeper.run.replays import Kill, Replayed

_SHOWN = 3

_CHECKS = {
    "DataError": ("data", "data"),
    "IndependenceError": ("independence", "model"),
    "ObjectiveError": ("objective", "objective"),
    "UncapturableError": ("capture", "callbacks"),
}
"""Check and argument of `Study` of an error that ends a trial, by the error's type."""

_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "TBNotInstalledError")

_AGAIN = (
    "so a resumed, repeated or verified trial would have another result; draw random numbers "
    "from trial.seed or from the global generators, which are seeded, and do not read the clock"
)


def finding_of_failure(failed: Failed, argument: Callable[[str], Line | None]) -> Finding:
    """Return the finding for an error that ended a trial.

    ``argument`` returns the line of an argument of `Study`, for an error of no line of the user's.
    """
    kind, _, message = failed.error.partition(": ")
    check, where = _CHECKS.get(kind, ("build", "model"))
    if kind not in _CHECKS:
        message = failed.error
        if kind in _IMPORT_ERRORS and " is not installed" in message:
            check = "installation"
    return Finding("error", check, message, failed.line or argument(where))


def judge(
    trained: Replayed, compared: ReplayComparison, kill: Kill | None, level: Level
) -> tuple[list[Finding], list[str]]:
    """Return findings on whether a trial repeats and survives a kill, and the promises that hold.

    Args:
        trained: The first replay.
        compared: Comparison of the first replay with the second.
        kill: Kill of the second replay; None if it was not killed.
        level: Level of a difference: ``"error"`` if the study promises exactness.
    """
    authors = trained.authors
    if authors is None:
        msg = "the first replay did not build its trial"
        raise ValueError(msg)
    notes = list(_measured(compared, authors))
    by_step = {
        step: found
        for (step, _), seen in sorted(compared.checkpoints.items())
        if (found := errors(seen.differences))
    }
    ours, theirs = _end(trained), _end(compared.replayed)
    if not by_step and ours != theirs:
        how = f"{ours} undisturbed, {theirs} resumed"
        by_step = {ours[0]: [Difference("position", "end", "the end", how, "error", False)]}
    first = min(by_step, default=0)
    if trained.weights != compared.replayed.weights:
        message = (
            f"the model factory {authors.model.name} returned different initial weights in a "
            f"second run of the same trial with the same seed; {_AGAIN}"
        )
        return [*notes, Finding(level, "seeds", message, authors.model.line)], []
    if by_step and (kill is None or first <= kill.checkpoint or compared.repeats is False):
        message = (
            "the trial is nondeterministic: in a second run of it, these differ at step "
            f"{first}: {_shown(by_step[first])}; look in {_suspects(authors)}; {_AGAIN}"
        )
        return [*notes, Finding(level, "determinism", message, _line(by_step[first], authors))], []
    if kill is not None and by_step:
        message = (
            f"killed after step {kill.after} and resumed at step {kill.checkpoint}, the trial "
            f"differs from the same trial without the kill: at step {first} these differ: "
            f"{_shown(by_step[first])}. Some state that training changes is not in checkpoints "
            "(in a module variable, the environment, a file, an object of a library); look in "
            f"{_suspects(authors)}; keep it in the callback or model, or register it with "
            "Trial.track"
        )
        return [*notes, Finding(level, "resume", message, _line(by_step[first], authors))], []
    end = ours[0]
    held = [
        "the same seed gives the same initial weights in two processes",
        f"{end} steps repeat bit for bit in another process",
    ]
    if kill is not None:
        held.append(
            f"killed (SIGKILL) after step {kill.after} and resumed at step {kill.checkpoint} in a "
            f"fresh process, the trial is bit-identical at step {end}: weights, optimizer, "
            "metrics, history, callbacks, generators"
        )
    return notes, held


def _end(replayed: Replayed) -> tuple[int, str, str]:
    """Return the step, the value and the digest at a replay's end."""
    end = replayed.end
    if not isinstance(end, Finished | PrunedHere):
        return 0, "", ""
    return end.step, repr(end.value), end.digest


def _measured(compared: ReplayComparison, authors: StudyAuthors) -> Iterator[Finding]:
    """Yield a note for each value that two equal runs do not have alike."""
    noted = {each.name: each for each in compared.differences if each.level == "note"}
    for each in noted.values():
        message = (
            f"{each.name} differs between two runs of the same trial ({each.how}); no result "
            "depends on it"
        )
        yield Finding("note", "determinism", message, _line([each], authors))


def _shown(found: Sequence[Difference]) -> str:
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return f"{'; '.join(map(str, found[:_SHOWN]))}{more}"


def _suspects(authors: StudyAuthors) -> str:
    """Return the user's callbacks with their lines; the factories if there are none."""
    return ", ".join(authors.users or (str(authors.data), str(authors.model)))


def _line(found: Sequence[Difference], authors: StudyAuthors) -> Line | None:
    """Return the line of the user's callback in which the first difference is, or of a likely one."""
    for each in found:
        owner = _owner(each, authors)
        if owner is not None and owner.line is not None:
            return owner.line
    own = (callback.line for callback in authors.callbacks if callback.line is not None)
    return next(own, authors.model.line)


def _owner(difference: Difference, authors: StudyAuthors) -> Authored | None:
    owners = [c for c in authors.callbacks if difference.name.startswith(f"callback {c.name}")]
    return max(owners, key=lambda callback: len(callback.name), default=None)
