"""The tables of a page, read from its HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class _Cells(HTMLParser):
    """The caption of every table, and the text of its cells by row."""

    def __init__(self) -> None:
        super().__init__()
        self.captions: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.inside = False
        self.heading = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.heading = tag == "caption"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.heading = False
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.heading:
            self.captions.append(data)
        if self.inside:
            self.tables[-1][-1][-1] += data


def tables_of(page: str) -> dict[str, list[list[str]]]:
    """Each table's rows by its caption."""
    cells = _Cells()
    cells.feed(page)
    return {c: table[1:] for c, table in zip(cells.captions, cells.tables, strict=True)}
