"""The rungs that trials have come to, in words and as a table: who was compared, and who went on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from sweeper.records.rungs import RungDecision, RungRecord
from sweeper.report.formats import value_text
from sweeper.report.widths import plain_table
from sweeper.results import TrialRecord

_MOST_NAMED = 8


def rungs_table(rungs: Sequence[RungRecord], number: int) -> Table:
    """One row a rung of trial ``number``: its value, what was decided, and among whom."""
    table = plain_table()
    for name in ("rung after epoch", "value"):
        table.add_column(name, justify="right")
    table.add_column("decision", no_wrap=True)
    table.add_column("compared", overflow="fold")
    for rung in rungs:
        table.add_row(
            str(rung.epochs),
            value_text(rung.value, 6),
            Text(decision_text(rung), style="green" if rung.promoted else "yellow"),
            Text(compared_text(rung, number)),
        )
    return table


def decision_text(rung: RungRecord) -> str:
    """What became of a trial at a rung."""
    if rung.decision is None:
        return "waits for the others"
    return "promoted" if rung.promoted else "ended here"


def compared_text(rung: RungRecord, number: int) -> str:
    """With whom trial ``number`` was compared at a rung; empty before that is decided."""
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
    """All rungs that were decided, in the order of their rounds and epochs."""
    found = {
        (rung.decision.first, rung.decision.epochs): rung.decision
        for trial in trials
        for rung in trial.rungs
        if rung.decision is not None
    }
    return tuple(found[key] for key in sorted(found))


def promoted_text(decision: RungDecision) -> str:
    """Who went on from a rung, with what, the numbers ascending."""
    went_on = [trial for trial in decision.compared if trial.promoted]
    return ", ".join(f"{trial.number} ({value_text(trial.value, 6)})" for trial in went_on)
