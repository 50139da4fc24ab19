"""Content of a page, as plain text in frozen records.

Pages do not depend on HTML: `sweeper.views.pages.report` renders them for a file or the dashboard,
and `sweeper.views.terminal.drawing` renders a trial's page for a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sweeper.records.results import StudyStatus, TrialRecord

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another page; plain text if ``href`` is empty."""

    text: str
    href: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table, or the value of a fact.

    Attributes:
        text: Its text.
        links: Links after the text, separated by commas.
        note: Less prominent text, such as the reason for a failure.
        kind: Style of the text: ``"state"`` has the mark and colour of a trial's state; ``"code"`` and
            ``"digest"`` have a fixed width, and a terminal shortens digests in tables.
        progress: Finished and total number, drawn as a bar.
    """

    text: str
    links: tuple[Link, ...] = ()
    note: str = ""
    kind: Literal["", "state", "code", "digest"] = ""
    progress: tuple[int, int] | None = None


Row = tuple[Cell | str, ...]
"""The cells of a row; a string is a plain cell."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's header, and whether the column holds numbers, which are aligned at the right."""

    header: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        caption: Heading of the table, also for screen readers.
        columns: The columns; the first one contains the headers of the rows.
        rows: The cells of each row.
        key: Prefix of the rows' ids, before the first cell's text; empty for rows without ids.
        folded: Heading of the folded table; empty for a table that is always open.
        cut: On a terminal, the note about rows that were left out.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    key: str = ""
    folded: str = ""
    cut: str = ""

    def row_id(self, row: Row) -> str:
        """Return the id of a row, for updates of the page."""
        first = row[0]
        if isinstance(first, Cell):
            first = first.text or "".join(link.text for link in first.links)
        return f"{self.key}-{first}"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure.

    Attributes:
        key: Name of its element, file and address.
        heading: Heading above it.
        alt: Description for screen readers.
        draw: Function that draws it.
    """

    key: str
    heading: str
    alt: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page with a heading.

    Attributes:
        id: Address of the section within the page.
        words: Paragraphs.
        picture: Figure before the tables.
        commands: Commands, each with its effect.
        answers: Whether the section is the target of the skip link, with its first paragraph emphasized.
    """

    id: str
    heading: str
    words: tuple[str, ...] = ()
    picture: Picture | None = None
    tables: tuple[Table, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page.

    Attributes:
        title: Title of the browser's tab.
        lead: Sentence below the heading.
        counts: Names and emphasized numbers below that.
        facts: Names and values, in the same style.
        notices: Warnings above the numbers.
        error: A trial's error, of several lines.
        path: Links to the pages above this one.
        elsewhere: Link to the same study or trial in optuna-dashboard.
        live: Whether the page is updated while it is open.
    """

    title: str
    heading: str
    lead: str = ""
    counts: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, Cell], ...] = ()
    notices: tuple[str, ...] = ()
    error: str = ""
    sections: tuple[Section, ...] = ()
    path: tuple[Link, ...] = ()
    elsewhere: Link | None = None
    live: bool = False

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Return all figures of the page, in their order."""
        return tuple(each.picture for each in self.sections if each.picture is not None)

    @property
    def main(self) -> str:
        """Return the id of the keyboard's skip target."""
        return next((section.id for section in self.sections if section.answers), "content")


TrialAddress = Callable[[int], str]
"""Function from a trial's number to the address of its page; empty if there is none."""


def no_address(_number: int) -> str:
    """Return no address, for a file without other pages."""
    return ""


def texts(*headers: str) -> tuple[Column, ...]:
    """Return columns of text."""
    return tuple(map(Column, headers))


def numbers(*headers: str) -> tuple[Column, ...]:
    """Return columns of numbers."""
    return tuple(Column(header, number=True) for header in headers)


def trial_cell(number: int, address: TrialAddress) -> Cell:
    """Return a trial's number, with a link to its page if there is one."""
    href = address(number)
    if not href:
        return Cell(str(number))
    return Cell("", links=(Link(str(number), href, f"trial {number}"),))


def _none(_record: object) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Advice:
    """Commands, exactly as they must be typed in the dashboard's directory."""

    study: Callable[[StudyStatus], Sequence[str]] = _none
    trial: Callable[[TrialRecord], Sequence[str]] = _none
