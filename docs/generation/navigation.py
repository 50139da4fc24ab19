"""The order of the site: by directory, so that a new page has its place by being there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SECTIONS = {
    "tutorial": "Tutorial",
    "gallery": "Gallery",
    "how-to": "How-to guides",
    "reference": "Reference",
    "explanation": "Explanation",
    "source": "Examples and studies",
}

FIRST = (
    "tutorial/index.md",
    "how-to/index.md",
    "how-to/from-a-keras-script.md",
    "how-to/from-optuna.md",
    "how-to/from-keras-tuner.md",
    "how-to/resume.md",
    "how-to/extending.md",
    "how-to/data-sources.md",
    "how-to/files.md",
    "how-to/callbacks.md",
    "how-to/trackers.md",
    "how-to/search.md",
    "how-to/compare.md",
    "how-to/check.md",
    "how-to/verify.md",
    "how-to/failed-trials.md",
    "reference/index.md",
    "reference/python.md",
    "reference/records.md",
    "reference/command-line.md",
    "reference/errors-and-exit-codes.md",
    "reference/settings.md",
    "reference/json.md",
    "reference/database.md",
    "reference/checkpoint-format.md",
    "explanation/index.md",
    "explanation/promises.md",
    "explanation/exactness.md",
)
"""Pages that come before the others of their section, which follow by name."""

LISTED = ("how-to", "explanation")
"""Directories whose index names every page of theirs."""

_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def navigation(pages: Mapping[str, str]) -> list[Any]:
    """What MkDocs takes as ``nav``.

    Args:
        pages: The text of each page by its path in ``docs/``.

    Raises:
        ValueError: A page is in no section, or has no heading.
    """
    sections: dict[str, list[Any]] = {name: [] for name in SECTIONS}
    rank = {path: index for index, path in enumerate(FIRST)}
    for path in sorted(pages, key=lambda path: (rank.get(path, len(rank)), path)):
        heading = _HEADING.search(pages[path])
        if heading is None:
            raise ValueError(f"docs/{path} has no heading; begin it with a line '# …'")
        if path == "index.md":
            continue
        section = path.partition("/")[0]
        if section not in sections:
            raise ValueError(
                f"docs/{path} is in no section; put it into one of {', '.join(SECTIONS)}"
            )
        is_index = path.endswith("/index.md")
        sections[section].append(path if is_index else {heading[1].replace("`", ""): path})
    shown = [{SECTIONS[name]: found} for name, found in sections.items() if found]
    return [{"Home": "index.md"}, *shown]


def with_every_page(index: str, section: str, pages: Mapping[str, str]) -> str:
    """The text of the index of ``section``, with those of its pages that it does not link to at its end.

    Args:
        index: The text.
        section: A directory of ``docs/``, also a nested one.
        pages: The text of each page by its path in ``docs/``.
    """
    items = []
    for path in sorted(pages):
        directory, _, name = path.rpartition("/")
        heading = _HEADING.search(pages[path])
        if directory == section and name != "index.md" and f"({name})" not in index and heading:
            items.append(f"- [{heading[1]}]({name})")
    return "\n".join([index.rstrip(), "", *items, ""])
