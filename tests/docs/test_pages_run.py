"""Every block of the guides and of the reference runs as it stands, in the order of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_blocks import DOCS, ROOT, all_pages, blocks, blocks_of
from doc_runs import checkout, run_pages, runnable

OWN_TESTS = ("README.md", "docs/tutorial/index.md", "docs/reference/index.md")
"""Pages that are run by files of their own."""

FIRST = "docs/how-to/index.md"
"""The page whose study the others go on from."""


def pages_here() -> list[str]:
    names = [str(path.relative_to(ROOT)) for path in all_pages()]
    names = [name for name in names if name not in OWN_TESTS and runnable(ROOT / name)]
    return sorted(names, key=lambda name: (name != FIRST, name))


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of each page that failed, what it said last. All are run in one checkout, the guides' index first."""
    directory = tmp_path_factory.mktemp("pages")
    place = checkout(directory / "checkout")
    names = pages_here()
    return run_pages(
        dict.fromkeys(names, place), directory, {name: runnable(ROOT / name) for name in names}
    )


LONG = [
    str(page.relative_to(ROOT))
    for page in all_pages()
    if str(page.relative_to(ROOT)) not in OWN_TESTS
    and any(block.marker == "long" for block in blocks(page))
]


@pytest.fixture(scope="module")
def failures_of_long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As `failures`, of the pages with long blocks, which run too."""
    directory = tmp_path_factory.mktemp("long")
    place = checkout(directory / "checkout")
    found = {name: runnable(ROOT / name, long=True) for name in [FIRST, *LONG]}
    return run_pages(dict.fromkeys(found, place), directory, found)


@pytest.mark.pages
@pytest.mark.parametrize("page", LONG)
def test_a_pages_long_blocks_run_too(page: str, failures_of_long: dict[str, str]) -> None:
    assert page not in failures_of_long, failures_of_long[page]


@pytest.mark.parametrize("page", pages_here())
def test_a_pages_blocks_run_as_they_stand(page: str, failures: dict[str, str]) -> None:
    assert page not in failures, failures[page]


def test_control_a_block_that_fails_is_named(tmp_path: Path) -> None:
    text = "```python\nx = 1\n```\n\n```python\nassert x == 2, 'not two'\n```\n"
    found = blocks_of(text, "wrong.md")
    said = run_pages({"wrong.md": tmp_path}, tmp_path, {"wrong.md": found})
    assert "not two" in said["wrong.md"]
    assert "wrong.md:6" in said["wrong.md"]


def test_the_guides_are_all_here() -> None:
    found = {Path(name) for name in pages_here()}
    assert Path(FIRST) in found
    assert len([page for page in (DOCS / "how-to").glob("*.md") if blocks(page)]) >= 15
