"""Choice of the checkpoints to evaluate: kept ones, of trials that the study's code still builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.errors import CheckpointError
from sweeper.execution.protocol.evaluations import Candidate
from sweeper.execution.unchanged import begun_before_a_change
from sweeper.execution.worker.checkpoints import locate
from sweeper.paths import RunPaths
from sweeper.results import TrialRecord
from sweeper.storage.repository import Repository


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """A trial, or one checkpoint of it, that could not be measured.

    Attributes:
        step: The checkpoint's; None for the trial as a whole.
    """

    trial: int
    step: int | None
    reason: str

    @property
    def line(self) -> str:
        """For a person."""
        what = f"trial {self.trial}"
        if self.step is not None:
            what += f", checkpoint of step {self.step}"
        return f"{what} was not evaluated: {self.reason}"


@dataclass(frozen=True)
class ChosenTrial:
    """A trial, and its checkpoints that are to be measured, by their steps."""

    record: TrialRecord
    candidates: tuple[Candidate, ...]


def choose(
    repository: Repository, study: str, number: int | None, paths: RunPaths
) -> tuple[list[ChosenTrial], list[NotEvaluated]]:
    """Return the trials to evaluate, and the checkpoints that are left out.

    Args:
        repository: The study's database.
        study: Its name.
        number: Of the only trial to evaluate; None for every trial that has begun.
        paths: Where the study's files are today.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
    """
    one = None if number is None else repository.trial(study, number)
    records = repository.trials(study) if one is None else (one,)
    before = begun_before_a_change(repository, study)
    chosen: list[ChosenTrial] = []
    passed_over: list[NotEvaluated] = []
    for record in records:
        reason = _why_not(record, before)
        if reason is not None:
            passed_over.append(NotEvaluated(record.number, None, reason))
            continue
        try:
            there, gone = _candidates(record, paths)
        except CheckpointError as error:
            passed_over.append(NotEvaluated(record.number, None, str(error)))
            continue
        passed_over += gone
        if there:
            chosen.append(ChosenTrial(record, there))
    return chosen, passed_over


def _why_not(record: TrialRecord, before: Mapping[int, str]) -> str | None:
    if not record.checkpoints:
        return "it has no kept checkpoint"
    if record.number in before:
        return (
            f"it began before the study's definition was changed ({before[record.number]}), and the "
            "code that makes its model is not kept"
        )
    return None


def _candidates(
    record: TrialRecord, paths: RunPaths
) -> tuple[tuple[Candidate, ...], list[NotEvaluated]]:
    """Return the location of each checkpoint; of two with the same step and digest, the newer."""
    located = locate(record, paths)
    known = set(located.known)
    there: dict[tuple[int, str], Candidate] = {}
    gone = []
    for each in record.checkpoints:
        path = located.moved.get(each.path, each.path)
        if path in known:
            there[each.step, each.digest] = Candidate(path, each.step, each.epoch, each.digest)
        else:
            reason = f"it is not at {each.path} any more; say where it is with --runs-dir"
            gone.append(NotEvaluated(record.number, each.step, reason))
    return tuple(sorted(there.values(), key=lambda c: c.step)), gone
