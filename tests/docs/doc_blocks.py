"""The blocks of a page, and which of them run."""

from __future__ import annotations

import re
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

SHELL = ("console", "bash", "sh")
_FENCE = re.compile(
    r"(?:^<!-- (?P<marker>not run|long): (?P<why>[^\n]+?) -->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        line: Of its first line of text, in the page.
        file: What it is written to, in place of being run; empty for none.
        marker: ``"not run"``, or ``"long"`` of what runs only when asked for; else empty.
        why: What the marker says.
    """

    page: str
    line: int
    language: str
    text: str
    file: str = ""
    marker: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def blocks_of(text: str, page: str) -> list[Block]:
    """Every block of a page, in order."""
    found = []
    for each in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', each["info"])
        found.append(
            Block(
                page,
                text[: each.start("text")].count("\n") + 1,
                each["language"],
                textwrap.dedent(each["text"]),
                title[1] if title else "",
                each["marker"] or "",
                each["why"] or "",
            )
        )
    return found


def blocks(page: Path) -> list[Block]:
    """Every block of the page at this path."""
    return blocks_of(page.read_text(), str(page.relative_to(ROOT)))


def all_pages() -> list[Path]:
    """Every page that a reader finds, the README first."""
    documents = [p for p in sorted(DOCS.rglob("*.md")) if "generation" not in p.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *documents]
