"""The rungs that trials have come to, in words: who was compared, and who went on."""

from __future__ import annotations

from collections.abc import Iterable

from sweeper.records.rungs import RungDecision, RungRecord
from sweeper.report.formats import value_text
from sweeper.results import TrialRecord

_MOST_NAMED = 8


def decision_text(rung: RungRecord) -> str:
    """Write what became of a trial at a rung."""
    if rung.decision is None:
        return "waits for the others"
    return "promoted" if rung.promoted else "ended here"


def compared_text(rung: RungRecord, number: int) -> str:
    """Write with which trials ``number`` was compared at a rung; empty before that is decided."""
    decision = rung.decision
    if decision is None:
        return ""
    went_on = [trial for trial in decision.compared if trial.promoted]
    named = ", ".join(
        f"{trial.number} ({value_text(trial.value, 6)})"
        for trial in went_on[:_MOST_NAMED]
        if trial.number != number
    )
    more = " and more" if len(went_on) > _MOST_NAMED else ""
    others = f"; also promoted: {named}{more}" if named else ""
    return (
        f"{len(decision.compared)} trials of bracket {decision.bracket} from trial {decision.first} "
        f"on, of which {len(went_on)} went on{others}"
    )


def decisions_of(trials: Iterable[TrialRecord]) -> tuple[RungDecision, ...]:
    """Return all rungs that were decided, in the order of their rounds and epochs."""
    found = {
        (rung.decision.first, rung.decision.epochs): rung.decision
        for trial in trials
        for rung in trial.rungs
        if rung.decision is not None
    }
    return tuple(found[key] for key in sorted(found))


def promoted_text(decision: RungDecision) -> str:
    """Write which trials went on from a rung, with their values, the numbers ascending."""
    went_on = [trial for trial in decision.compared if trial.promoted]
    return ", ".join(f"{trial.number} ({value_text(trial.value, 6)})" for trial in went_on)
