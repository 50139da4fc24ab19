"""Every command of the pages is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import typer.main
from doc_blocks import SHELL, all_pages, blocks

from sweeper.cli.main import app
from sweeper.cli.options import Invocation

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_ENDS = {"&&", "||", "|", ";", "&"}


def found(page, *languages):
    return [block for block in blocks(page) if block.language in languages]


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
    context = command.make_context("sweeper", list(words), obj=Invocation())
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)


CONSOLE = [block for page in all_pages() for block in found(page, *SHELL)]


@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_every_command_is_one_that_the_shell_and_the_command_line_take(block):
    assert "<" not in block.text, "nobody can paste a placeholder"
    for words in commands(block):
        parse(words)
    if block.page == README.name:
        for word in re.findall(r"[\w./-]+\.(?:py|sh|yaml|md)\b|\btests/run\b", block.text):
            assert (ROOT / word).is_file(), word


def test_the_check_sees_commands_and_wrong_ones():
    typed = [words for block in CONSOLE for words in commands(block)]
    assert ["run", "studies/digits_learning_rate.py"] in typed
    assert ["resume", "digits-learning-rate"] in typed
    for wrong in (["run"], ["resume", "s", "--no-such-option"], ["no-such-verb"], ["ls", "more"]):
        with pytest.raises(Exception, match=r"(?i)missing|no such|unexpected|got"):
            parse(wrong)
    assert len([block for block in CONSOLE if block.page == README.name]) >= 3
    assert len(found(README, "python")) == 2
