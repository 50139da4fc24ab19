"""Which trials can be verified, and under which definition: the one that they ran under, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from sweeper.code import short_code
from sweeper.definition import StudySettings
from sweeper.errors import DefinitionChangedError, MixedStudyError, SweeperError
from sweeper.execution.isolation import Loaded
from sweeper.results import TrialRecord
from sweeper.storage.repository import Repository, StudyRow
from sweeper.storage.verdicts import Verdicts
from sweeper.verification.findings import Unverified

__all__ = ["choose", "unchanged_settings"]

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
    before = _begun_before_a_change(repository, study)
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
            msg = (
                f"study {study!r} has no best trial; name one with --trial N, or verify "
                "all with --all"
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


def _begun_before_a_change(repository: Repository, study: str) -> dict[int, str]:
    """The accepted changes of the definition that each trial began before, by its number.

    A trial that began anew under the present definition began after them.
    """
    found: dict[int, list[str]] = {}
    changes = repository.definition_changes(study)
    if not changes:
        return {}
    present = short_code(repository.study(study).fingerprint)
    anew = {trial.number for trial in repository.trials(study) if trial.code == present}
    for change in changes:
        for number in range(change.begun):
            if number not in anew:
                found.setdefault(number, []).extend(change.changes)
    return {number: "; ".join(changes) for number, changes in found.items()}


def unchanged_settings(repository: Repository, row: StudyRow, loaded: Loaded) -> StudySettings:
    """The stored settings, where the study's file still says the same.

    Raises:
        DefinitionChangedError: It does not.
    """
    given = loaded.settings
    if not loaded.threads_given:
        given = replace(given, threads=int(row.definition["threads"]))
    changes = Verdicts(repository.database).definition_differences(
        replace(row, definition=given.to_json(), code=loaded.code)
    )
    if changes:
        msg = (
            f"study {row.name!r} is defined otherwise than when its trials ran: "
            f"{'; '.join(changes)}. Restore the definition to verify them"
        )
        raise DefinitionChangedError(msg)
    return StudySettings.from_json({**row.definition, "trials": row.target})
