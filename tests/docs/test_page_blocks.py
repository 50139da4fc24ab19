"""Blocks that do not run are few, say why, and are at least well formed."""

from __future__ import annotations

import ast
import json
import subprocess
import tomllib

import pytest
import yaml
from doc_blocks import SHELL, Block, all_pages, blocks, blocks_of

BLOCKS = [block for page in all_pages() for block in blocks(page)]


def check_form(block: Block) -> None:
    """Raise where the block is not what its language says."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language in SHELL:
        done = subprocess.run(["bash", "-n"], input=block.text, text=True, check=False)
        if done.returncode:
            msg = f"{block} is nothing that bash takes"
            raise SyntaxError(msg)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language in ("yaml", "yml"):
        list(yaml.safe_load_all(block.text))
    elif block.language != "text":
        msg = f"{block} is in {block.language!r}, which nothing here checks"
        raise ValueError(msg)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_what_its_language_says(block: Block) -> None:
    check_form(block)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.marker], ids=str)
def test_a_block_that_is_not_run_by_default_says_why(block: Block) -> None:
    assert len(block.why) >= len("needs GPUs")


@pytest.mark.parametrize(
    ("language", "text"),
    [("python", "x ="), ("bash", "if x; then"), ("json", "{"), ("toml", "a"), ("cobol", "")],
)
def test_control_a_block_that_is_something_else_is_refused(language: str, text: str) -> None:
    [block] = blocks_of(f"```{language}\n{text}\n```\n", "page.md")
    with pytest.raises((SyntaxError, ValueError)):
        check_form(block)


def test_control_a_marker_is_read_with_its_reason() -> None:
    text = "<!-- not run: needs a cluster -->\n```bash\nls\n```\n\n```bash\npwd\n```\n"
    first, second = blocks_of(text, "page.md")
    assert (first.marker, first.why, second.marker) == ("not run", "needs a cluster", "")
