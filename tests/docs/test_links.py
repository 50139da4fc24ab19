"""Every link of the texts beside the code leads to something that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT
from markdown.extensions.toc import slugify

TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def broken(text: str, beside: Path) -> list[str]:
    """The links of ``text`` that lead nowhere, as files below ``beside``."""
    found = []
    for link in _LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = beside / name
        if not target.exists() or (anchor and anchor not in anchors(target, text, name)):
            found.append(link)
    return found


def anchors(target: Path, text: str, name: str) -> set[str]:
    headings = _HEADING.findall(target.read_text() if name else text)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_leads_to_something(name: str) -> None:
    assert broken((ROOT / name).read_text(), ROOT) == []


def test_control_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading\n")
    text = "[a](there.md) [b](there.md#a-heading) [c](gone.md) [d](there.md#gone)"
    assert broken(text, tmp_path) == ["gone.md", "there.md#gone"]


NAMED = re.compile(r"\b(?:studies|examples|benchmarks)/[\w./-]+\.(?:py|sbatch|yaml)\b")


def files_that_are_not_there(text: str) -> list[str]:
    return sorted({name for name in NAMED.findall(text) if not (ROOT / name).is_file()})


def test_every_file_that_a_text_names_is_there() -> None:
    kept = ("docs", "examples", "studies")
    texts = [
        *(ROOT / name for name in TEXTS),
        *(
            path
            for name in kept
            for path in (ROOT / name).rglob("*")
            if path.suffix in (".md", ".py", ".sbatch", ".yaml")
        ),
    ]
    missing = {str(path): files_that_are_not_there(path.read_text()) for path in texts}
    assert {path: names for path, names in missing.items() if names} == {}


def test_control_a_named_file_that_is_not_there_is_found() -> None:
    text = "sweeper run /shared/studies/digits.py; see examples/keras_aliasing.py"
    assert files_that_are_not_there(text) == ["studies/digits.py"]
