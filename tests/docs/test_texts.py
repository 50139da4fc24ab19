"""Texts beside the code: links, blocks and commands are what they seem to be."""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
import typer.main
import yaml
from doc_blocks import ROOT, SHELL, all_pages, blocks, blocks_of
from markdown.extensions.toc import slugify

from sweeper.cli.main import app

TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def broken(text, beside):
    """The links of ``text`` that lead nowhere, as files below ``beside``."""
    links = []
    for link in _LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = beside / name
        if not target.exists() or (anchor and anchor not in anchors(target, text, name)):
            links.append(link)
    return links


def anchors(target, text, name):
    headings = _HEADING.findall(target.read_text() if name else text)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


def test_every_link_leads_to_something():
    dev = (ROOT / "docs/dev").rglob(
        "*.md"
    )  # which the site leaves out, whose build checks the others
    pages = [*(ROOT / name for name in TEXTS), *dev]
    assert len(pages) > 60
    links = {str(page): broken(page.read_text(), page.parent) for page in pages}
    assert {page: lost for page, lost in links.items() if lost} == {}


def test_control_a_link_to_nothing_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# A heading\n")
    text = "[a](there.md) [b](there.md#a-heading) [c](gone.md) [d](there.md#gone)"
    assert broken(text, tmp_path) == ["gone.md", "there.md#gone"]


NAMED = re.compile(r"\b(?:studies|examples|benchmarks)/[\w./-]+\.(?:py|sbatch|yaml)\b")


def files_that_are_not_there(text):
    return sorted({name for name in NAMED.findall(text) if not (ROOT / name).is_file()})


def test_every_file_that_a_text_names_is_there():
    directories = ("docs", "examples", "studies")
    texts = [
        *(ROOT / name for name in TEXTS),
        *(
            path
            for name in directories
            for path in (ROOT / name).rglob("*")
            if path.suffix in (".md", ".py", ".sbatch", ".yaml")
        ),
    ]
    missing = {str(path): files_that_are_not_there(path.read_text()) for path in texts}
    assert {path: names for path, names in missing.items() if names} == {}


def test_control_a_named_file_that_is_not_there_is_found():
    text = "sweeper run /shared/studies/digits.py; see examples/keras_aliasing.py"
    assert files_that_are_not_there(text) == ["studies/digits.py"]


BLOCKS = [block for page in all_pages() for block in blocks(page)]


def check_form(block):
    """Raise where the block is not what its language says."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language in SHELL:
        process = subprocess.run(["bash", "-n"], input=block.text, text=True, check=False)
        if process.returncode:
            raise SyntaxError(f"{block} is nothing that bash takes")
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language in ("yaml", "yml"):
        list(yaml.safe_load_all(block.text))
    elif block.language != "text":
        raise ValueError(f"{block} is in {block.language!r}, which nothing here checks")


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_what_its_language_says(block):
    check_form(block)


@pytest.mark.parametrize(
    ("language", "text"),
    [("python", "x ="), ("bash", "if x; then"), ("json", "{"), ("toml", "a"), ("cobol", "")],
)
def test_control_a_block_that_is_something_else_is_refused(language, text):
    [block] = blocks_of(f"```{language}\n{text}\n```\n", "page.md")
    with pytest.raises((SyntaxError, ValueError)):
        check_form(block)


def test_control_a_marker_is_read_with_its_reason():
    text = "<!-- not run: needs a cluster -->\n```bash\nls\n```\n\n```bash\npwd\n```\n"
    first, second = blocks_of(text, "page.md")
    assert (first.marker, first.why, second.marker) == ("not run", "needs a cluster", "")


_ENDS = {"&&", "||", "|", ";", "&"}


def commands(block):
    """Every ``sweeper …`` of a block, its words; what is piped or chained is apart."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = []
        for word in [*shlex.split(line.removeprefix("$ "), comments=True), "&&"]:
            if word not in _ENDS:
                words.append(word)
                continue
            if words and Path(words[0]).name == "sweeper":
                yield words[1:]
            words = []


def parse(words):
    """Parse as the command line does, up to running the verb."""
    command = typer.main.get_command(app)
    context = command.make_context("sweeper", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)


CONSOLE = [block for block in BLOCKS if block.language in SHELL]
README = "README.md"


@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_every_command_is_one_that_the_shell_and_the_command_line_take(block):
    assert "<" not in block.text, "nobody can paste a placeholder"
    for words in commands(block):
        parse(words)
    if block.page == README:
        for word in re.findall(r"[\w./-]+\.(?:py|sh|yaml|md)\b|\btests/run\b", block.text):
            assert (ROOT / word).is_file(), word


def test_the_check_sees_commands_and_wrong_ones():
    typed = [words for block in CONSOLE for words in commands(block)]
    assert ["run", "studies/digits_learning_rate.py"] in typed
    assert ["resume", "digits-learning-rate"] in typed
    for wrong in (["run"], ["resume", "s", "--no-such-option"], ["no-such-verb"], ["ls", "s", "t"]):
        with pytest.raises(Exception, match=r"(?i)missing|no such|unexpected|got"):
            parse(wrong)
    assert len([block for block in CONSOLE if block.page == README]) >= 3
    assert [block.language for block in BLOCKS if block.page == README].count("python") == 2
