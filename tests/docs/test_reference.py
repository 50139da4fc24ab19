"""Every public name has an entry in the reference, described whole, with an example that runs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import pytest
from doc_blocks import DOCS, Block
from doc_runs import run_pages, runnable
from public_docstrings import has_example, loaded, public_objects, undescribed

import sweeper

REFERENCE = DOCS / "reference"
OBJECTS = public_objects(loaded())


def examples() -> Iterator[Block]:
    for path, thing in OBJECTS.items():
        for section in thing.docstring.parse("google", warnings=False):
            if section.kind.value == "examples":
                text = "\n".join(part for _, part in section.value)
                yield Block(path, thing.lineno or 1, "pycon", text)


def test_every_public_name_has_an_entry() -> None:
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    entries = {
        path.rpartition(".")[2] for path in re.findall(r"^::: (sweeper\.\S+)$", pages, re.MULTILINE)
    }
    assert set(sweeper.__all__) - entries == set()


@pytest.mark.parametrize("path", sorted(OBJECTS))
def test_a_public_name_has_an_example_and_leaves_nothing_undescribed(path: str) -> None:
    thing = OBJECTS[path]
    assert has_example(thing), "add an 'Examples:' section with '>>> ' to its docstring"
    assert list(undescribed(thing)) == []


def visited(code: str) -> Any:
    return griffe.visit("module", Path("module.py"), textwrap.dedent(code))


def test_control_what_is_left_out_is_found() -> None:
    module = visited(
        '''
        from dataclasses import dataclass

        def call(said, unsaid):
            """A call.

            Args:
                said: Something.
            """

        @dataclass
        class Record:
            """A record.

            Attributes:
                said: Something.

            Example:
                None that runs.
            """

            said: int
            unsaid: int
            _own: int

        class Thing:
            """A thing."""

            def __init__(self, unsaid): ...
            def method(self, argument):
                """A method."""
        '''
    )
    assert list(undescribed(module["call"])) == ["module.call(unsaid)"]
    assert list(undescribed(module["Record"])) == ["module.Record.unsaid"]
    assert list(undescribed(module["Thing"])) == [
        "module.Thing.__init__(unsaid)",
        "module.Thing.method(argument)",
    ]
    assert not has_example(module["Record"])
    assert not has_example(module["call"])


def test_every_example_gives_what_it_says(tmp_path: Path) -> None:
    name = "docs/reference/index.md"
    found = [*runnable(REFERENCE / "index.md"), *examples()]
    assert run_pages({name: tmp_path}, tmp_path, {name: found}) == {}


def test_control_an_example_that_gives_something_else_fails(tmp_path: Path) -> None:
    wrong = Block("sweeper.wrong", 1, "pycon", ">>> 1 + 1\n3")
    said = run_pages({"wrong": tmp_path}, tmp_path, {"wrong": [wrong]})
    assert "Expected:\n    3\nGot:\n    2" in said["wrong"]
