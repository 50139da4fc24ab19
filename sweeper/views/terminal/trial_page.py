"""A trial's page on a terminal: its facts and tables, without the pictures.

The pages import Optuna, which the progress of a run must not wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.records.results import StudyStatus, TrialRecord
from sweeper.views.pages.content import Cell, Page
from sweeper.views.pages.content import Table as PageTable
from sweeper.views.pages.trial import trial_page
from sweeper.views.tables import STATE_STYLES, WholeColumns, exactness_line, next_lines

_DIGEST_SHOWN = 12
_LEAST_COLUMNS = 2


def trial_on_terminal(
    trial: TrialRecord, study: StudyStatus, commands: Sequence[str] = ()
) -> RenderableType:
    """Return a rich renderable of a trial, with its study's audits.

    Epochs are counted from 1, and a checkpoint's are those that it comes after.
    """
    page = trial_page(trial, study.objective, now=datetime.now(UTC))
    parts: list[RenderableType] = [Text(page.heading, style="bold"), Text(page.lead), _facts(page)]
    if page.error:
        parts += [Text(""), Text(page.error.rstrip("\n"), style="red")]
    for table in (each for section in page.sections for each in section.tables if each.rows):
        parts.append(Text(""))
        if table.cut:
            parts.append(Text(table.cut, style="dim"))
        parts.append(_columns(table))
    return Group(*parts, Text(""), exactness_line(study.exactness), *next_lines(commands))


def _facts(page: Page) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in page.facts:
        style = STATE_STYLES.get(value.text, "") if value.kind == "state" else ""
        grid.add_row(Text(name), Text(_text(value), style=style))
    return grid


def _columns(table: PageTable) -> WholeColumns:
    """Return the columns of a table that fit, with a last text column wrapped."""
    headers = [column.header for column in table.columns]
    rows = [[_text(cell, most=_DIGEST_SHOWN) for cell in row] for row in table.rows]
    if table.columns[-1].number:
        return WholeColumns(headers, rows, _LEAST_COLUMNS)
    folded = (headers[-1], [row[-1] for row in rows])
    return WholeColumns(headers[:-1], [row[:-1] for row in rows], _LEAST_COLUMNS, folded)


def _text(cell: Cell | str, *, most: int | None = None) -> str:
    """Return the full text of a cell; only the first ``most`` characters of a digest."""
    if isinstance(cell, str):
        return cell
    text = cell.text[:most] if cell.kind == "digest" else cell.text
    words = (text, ", ".join(link.text for link in cell.links), cell.note and f"({cell.note})")
    return " ".join(word for word in words if word)
