"""What `sweeper doctor` found, as a table: seen, expected, and what to do."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.records.diagnoses import Diagnosis, Finding

_STYLES = {"ok": "green", "note": "yellow", "unpromised": "bold red", "broken": "bold red"}
_ENDS = {
    0: "everything that is promised by default can be promised here",
    1: "something is broken: no study can be run as things are",
    4: "something that is promised by default cannot be promised here",
}


def diagnosis_page(diagnosis: Diagnosis) -> RenderableType:
    """Return a line per finding; below it what was expected, and what to do where it is not in order."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for finding in diagnosis.findings:
        if finding.area != area:
            area = finding.area
            table.add_row("", Text(area, style="dim"), "")
        table.add_row(
            Text(finding.level, style=_STYLES[finding.level]),
            Text(finding.name),
            Text(_said(finding)),
        )
    return Group(table, Text(""), Text(_ENDS[diagnosis.exit_code]))


def _said(finding: Finding) -> str:
    text = f"{finding.seen}  (expected: {finding.expected})"
    return f"{text}\ndo: {finding.advice}" if finding.advice else text
