"""Which trials can be verified: finished ones, under the definition that they ran under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sweeper.errors import MixedStudyError, SweeperError
from sweeper.execution.unchanged import begun_before_a_change
from sweeper.records.status import none_complete
from sweeper.results import TrialRecord
from sweeper.storage.repository import Repository
from sweeper.verification.findings import Unverified

_REPLAYED_STATES = ("complete", "pruned")


def choose(
    repository: Repository, study: str, which: int | Literal["best", "all"]
) -> tuple[list[TrialRecord], tuple[Unverified, ...]]:
    """The trials to verify, and those that ``"all"`` passes over.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        SweeperError: There is no trial to verify, or the one asked for cannot be.
        MixedStudyError: It cannot be because it ran under another definition than the study's.
    """
    before = begun_before_a_change(repository, study)
    status = repository.status(study)
    mixed = f"; {len(status.codes)} codes are mixed in this study" if status.codes else ""
    if which == "all":
        chosen: list[TrialRecord] = []
        passed_over = []
        for trial in repository.trials(study):
            reason = _why_not(trial, before)
            if reason is None:
                chosen.append(trial)
            else:
                passed_over.append(Unverified(trial.number, reason))
        if not chosen and not mixed:
            reasons = "; ".join(f"trial {t.number} {t.reason}" for t in passed_over)
            msg = (
                f"study {study!r} has no trial to verify"
                f"{f': {reasons}' if reasons else ', none has begun; run it first'}"
            )
            raise SweeperError(msg)
        return chosen, tuple(passed_over)
    number = which
    if number == "best":
        best = status.best
        if best is None and mixed:
            msg = (
                f"study {study!r} has no complete trial under its present code{mixed}, and none "
                "under an earlier one can be verified, because that is not kept"
            )
            raise MixedStudyError(msg)
        if best is None:
            errors = [t.error for t in repository.trials(study) if t.state == "failed"]
            msg = (
                f"{none_complete(study, status.target, errors)}. So there is no best trial; name "
                "one with --trial N, or verify all with --all"
            )
            raise SweeperError(msg)
        number = best.number
    trial = repository.trial(study, number)
    reason = _why_not(trial, before)
    if reason is not None:
        msg = f"trial {number} of study {study!r} {reason}"
        if mixed and trial.number in before:
            raise MixedStudyError(msg + mixed)
        raise SweeperError(msg)
    return [trial], ()


def _why_not(trial: TrialRecord, before: Mapping[int, str]) -> str | None:
    """Why ``trial`` cannot be verified; None where it can."""
    if trial.state == "failed":
        return "failed, so it has no result to compare; `sweeper retry` gives it another attempt"
    if trial.state not in _REPLAYED_STATES:
        return f"is {trial.state}, not finished; verify it when it is (`sweeper resume`)"
    if trial.number in before:
        return (
            f"began before the study's definition was changed ({before[trial.number]}), and the "
            "definition that it ran under is not kept"
        )
    return None
