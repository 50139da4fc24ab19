"""The rungs that a trial has come to, as a table: who was compared there, and who went on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from sweeper.report.formats import value_text
from sweeper.report.widths import plain_table
from sweeper.rungs import RungDecision, RungRecord

_MOST_NAMED = 8


def rungs_table(rungs: Sequence[RungRecord], number: int) -> Table:
    """One row a rung of trial ``number``: its value, what was decided, and among whom."""
    table = plain_table()
    for name in ("rung after epoch", "value"):
        table.add_column(name, justify="right")
    table.add_column("decision", no_wrap=True)
    table.add_column("compared", overflow="fold")
    for rung in rungs:
        said, style = _decision(rung)
        compared = "" if rung.decision is None else _compared(rung.decision, number)
        table.add_row(
            str(rung.epochs), value_text(rung.value, 6), Text(said, style=style), Text(compared)
        )
    return table


def _decision(rung: RungRecord) -> tuple[str, str]:
    if rung.decision is None:
        return "waits for the others", "yellow"
    return ("promoted", "green") if rung.promoted else ("ended here", "yellow")


def _compared(decision: RungDecision, number: int) -> str:
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
