"""Tables that fit a terminal's width with whole numbers: a column is there, or is named below.

Rich would squeeze every column alike, and break numbers into three characters a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 100_000
_LEAST_FOLDED = 24


def plain_table(first: str | None = None) -> Table:
    """Return a table without lines, whose ``first`` column's words are broken where they must."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    if first is not None:
        table.add_column(first, overflow="fold")
    return table


def fits(table: Table, options: ConsoleOptions, console: Console) -> bool:
    """Return whether the table has room with every cell on one line."""
    natural = Measurement.get(console, options.update(width=_ANY_WIDTH), table).maximum
    return natural <= options.max_width


@dataclass(frozen=True)
class WholeColumns:
    """What rich prints as a table of numbers, without the last columns where there is no room.

    Attributes:
        headers: One a column.
        rows: A cell a column each.
        least: Columns that stay whatever the width.
        folded: The header of a further column, at the right, whose words are broken where they
            must, and its cells.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    least: int
    folded: tuple[str, Sequence[str]] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many columns as there is room for, and name the others."""
        room = options
        if self.folded is not None:
            longest = max((len(cell) for cell in self.folded[1]), default=0)
            taken = min(max(longest, len(self.folded[0])), _LEAST_FOLDED) + 2
            room = options.update(width=max(options.max_width - taken, 1))
        shown = len(self.headers)
        while shown > self.least and not fits(self._table(shown), room, console):
            shown -= 1
        yield self._table(shown, folded=True)
        if shown < len(self.headers):
            names = ", ".join(self.headers[shown:])
            yield Text(
                f"not shown for want of room: {names}; --csv and --json have them", style="dim"
            )

    def _table(self, shown: int, *, folded: bool = False) -> Table:
        table = plain_table()
        for header in self.headers[:shown]:
            table.add_column(Text(header), justify="right", no_wrap=True)
        last: Sequence[str] = ()
        if folded and self.folded is not None:
            header, last = self.folded
            table.add_column(header, overflow="fold")
        for index, row in enumerate(self.rows):
            table.add_row(*map(Text, row[:shown]), *map(Text, last[index : index + 1]))
        return table
