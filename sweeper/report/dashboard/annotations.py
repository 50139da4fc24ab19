"""The words that optuna-dashboard shows of a study and its trials: one short note, and attributes.

Optuna's tables have no place for attempts, pauses, digests or reasons, and know a trial that waits to
be resumed as a running one. These words say it there; our own pages show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sweeper.report.figures.choosing import status_objectives
from sweeper.report.formats import last_line, params_text, time_text, value_text
from sweeper.report.pages.lineage import lineage
from sweeper.results import StudyStatus, TrialRecord
from sweeper.storage.repository import StudyRow

BELOW = "*Below this line sweeper keeps the note up to date; write your own above it.*"
"""Parts a person's own words in a study's note from ours."""

NAMES = (
    "attempts",
    "interrupted",
    "failed because",
    "resumed from step",
    "worked",
    "paused",
    "at a rung",
    "seed",
    "digest",
    "verified",
    "audited",
)
"""Every attribute of a trial that is ever set, or deleted again."""

_LONGEST_REASON = 300
_MOST_NUMBERS = 20
_SHOWN_SETTINGS = (
    "epochs",
    "budget",
    "sampler",
    "concurrency",
    "checkpoint_every",
    "deterministic",
)


def trial_attributes(trial: TrialRecord, now: datetime) -> Mapping[str, Any]:
    """Return what optuna-dashboard is to show of a trial, by names of `NAMES`.

    What changes from second to second is left out while the trial runs.
    """
    found = lineage(trial, now)
    # A seed has up to 63 bits, and a browser's numbers have 53.
    attributes: dict[str, Any] = {"attempts": len(trial.attempts), "seed": str(trial.seed)}
    if trial.state == "interrupted" and found.attempts:
        attributes["interrupted"] = (
            f"waits to be resumed; attempt {len(found.attempts)} {found.attempts[-1].ending}"
        )[:_LONGEST_REASON]
    if trial.state == "paused" and trial.rungs:
        rung = trial.rungs[-1]
        attributes["at a rung"] = (
            f"after {rung.epochs} epochs, with {value_text(rung.value, 6)}; "
            + ("promoted, and waits for a worker" if rung.promoted else "waits for its decision")
        )
    if trial.state == "failed":
        attributes["failed because"] = last_line(trial.error or "see its log")[:_LONGEST_REASON]
    if found.resumed_from:
        attributes["resumed from step"] = ", ".join(map(str, found.resumed_from))
    if trial.state != "running":
        attributes["worked"] = time_text(found.worked)
        if len(trial.attempts) > 1:
            attributes["paused"] = f"{time_text(found.paused)}, which Duration includes"
    if trial.digest is not None:
        attributes["digest"] = trial.digest
    if trial.verification is not None:
        checked = trial.verification
        attributes["verified"] = f"{checked.verdict} ({checked.mode})"
    judged = [audit for audit in trial.audits if audit.alike is not None]
    if judged:
        alike = sum(1 for audit in judged if audit.alike)
        attributes["audited"] = f"{alike} of {len(judged)} intervals alike"
    return attributes


def study_note(
    row: StudyRow, status: StudyStatus, trials: Sequence[TrialRecord], commands: Sequence[str]
) -> str:
    """Return our part of a study's note, as Markdown; see `joined_note`."""
    settings = [f"{status.target} trials", f"seed {row.seed}"]
    settings += [
        f"{name.replace('_', ' ')} {_code(row.definition[name])}"
        for name in _SHOWN_SETTINGS
        if row.definition.get(name) is not None
    ]
    goals = ", ".join(f"{o.direction} {_code(o.name)}" for o in status_objectives(status))
    counts = (
        f"- {status.finished} of {status.target} done: {status.complete} complete, "
        f"{status.pruned} pruned, {status.failed} failed; {status.running} running, "
        f"{status.interrupted} interrupted, "
        f"{f'{status.paused} paused, ' if status.paused else ''}{status.waiting} waiting."
    )
    pages = f"/sweeper/studies/{status.study}"
    lines = [
        BELOW,
        "",
        f"[Attempts, checkpoints and verification of {status.study}]({pages})",
        "",
        f"**{goals}** · {' · '.join(settings)}",
        "",
        counts,
    ]
    if status.best is not None:
        best = status.best
        lines.append(
            f"- Best: trial {best.number}, {_code(value_text(best.value, 6))} with "
            f"{_code(params_text(best.params))}."
        )
    for state, said in (
        ("interrupted", "Interrupted, and shown as running here"),
        ("paused", "Paused at a rung, and shown as running here"),
        ("failed", "Failed, each with its reason among its attributes"),
    ):
        numbers = [trial.number for trial in trials if trial.state == state]
        if numbers:
            lines.append(f"- {said}: {_numbers(numbers)}.")
    resumed = [trial.number for trial in trials if len(trial.attempts) > 1]
    if resumed:
        lines.append(
            f"- Resumed: {_numbers(resumed)}. Duration here counts their pauses, too; their "
            "attributes have work and pauses apart."
        )
    if status.exactness.warning is not None:
        lines.append(f"- **Warning:** {_code(status.exactness.warning)}")
    if commands:
        lines += ["", "Next:", "", "```", *commands, "```"]
    return "\n".join(lines)


def joined_note(stored: str, ours: str) -> str:
    """Return the note with our part made ``ours``; what a person wrote above it stays."""
    theirs = stored.partition(BELOW)[0].rstrip()
    return f"{theirs}\n\n{ours}" if theirs else ours


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
    return f"trial{'s' * (len(numbers) > 1)} {shown}{' and more' * (len(numbers) > _MOST_NUMBERS)}"


def _code(value: object) -> str:
    """Write a value as code in Markdown, where nothing in it is read as markup."""
    text = " ".join(str(value).split()).replace("`", "'")
    return f"`{text[:_LONGEST_REASON]}`" if text else "-"
