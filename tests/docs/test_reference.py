"""Every public name has an entry in the reference, described whole, with an example."""

import re
import textwrap
from pathlib import Path

import errors_page
import griffe
import pytest
from doc_blocks import DOCS
from public_docstrings import has_example, public_object, public_paths, undescribed

import sweeper

REFERENCE = DOCS / "reference"


def test_every_public_name_has_an_entry():
    texts = [page.read_text() for page in REFERENCE.glob("*.md")]
    pages = "\n".join([*texts, errors_page.page()])
    entries = {
        path.rpartition(".")[2] for path in re.findall(r"^::: (sweeper\.\S+)$", pages, re.MULTILINE)
    }
    assert set(sweeper.__all__) - entries == set()


@pytest.mark.parametrize("path", public_paths())
def test_a_public_name_has_an_example_and_leaves_nothing_undescribed(path):
    thing = public_object(path)
    assert has_example(thing), "add an 'Examples:' section with '>>> ' to its docstring"
    assert list(undescribed(thing)) == []


def visited(code):
    return griffe.visit("module", Path("module.py"), textwrap.dedent(code))


def test_control_what_is_left_out_is_found():
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
