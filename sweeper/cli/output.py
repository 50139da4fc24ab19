"""Output of the verbs on standard output: JSON, CSV or a table.

JSON has no NaN and no infinities (RFC 8259), but Python's encoder would write them, so they are
written as ``null``.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from sweeper.records.printing import finite_json
from sweeper.support.shown import shown_text

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_importing(study: str) -> None:
    """Print to standard error that TensorFlow and the study are being imported."""
    typer.echo(f"importing TensorFlow and {shown_text(study)} ...", err=True)


def json_text(value: Any) -> str:
    text = json.dumps(finite_json(value), allow_nan=False, ensure_ascii=False, indent=2)
    # The name of a file need not be text: what is none is escaped, as JSON does it.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def print_json(value: Any) -> None:
    """Print one JSON value, indented, in UTF-8, on standard output."""
    typer.echo(json_text(value))


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as CSV (RFC 4180, UTF-8) on standard output, below a header of all their columns.

    Missing values and None are empty; numbers are written with all their digits.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


def print_report(report: object) -> None:
    """Print a report's text on standard output; a terminal shows levels and verdicts in colour."""
    from rich.console import Console
    from rich.text import Text

    text = Text(str(report))
    for pattern, style in _REPORT_STYLES.items():
        text.highlight_regex(pattern, style)
    # Lines are wrapped by the terminal alone, so that a pipe gets them as they are.
    Console(highlight=False).print(text, soft_wrap=True)


_REPORT_STYLES = {
    r"(?m)^error(?= \[)|(?<=: )a promise does not hold": "bold red",
    r"(?m)^warning(?= \[)": "yellow",
    r"(?m)^note(?= \[)": "cyan",
    r"(?m)^holds(?=  )|(?<=: )holds(?=, )": "green",
    r"(?m)^(metrics|time|disk|removed)(?=  )": "dim",
}
"""Styles of a check's report, by the pattern of the words that have them."""


def print_table(table: "RenderableType") -> None:
    """Print a rich renderable on standard output.

    In a pipe lines are as long as their content, so that ``grep`` and ``awk`` find whole rows.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_WIDTH)
    console.print(table)


_PIPE_WIDTH = 1000
