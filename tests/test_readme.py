"""Every command of the pages is one that the command line takes, and the README's Python runs as it stands."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import typer.main
from doc_blocks import SHELL, Block, all_pages, blocks

from sweeper.cli.main import app
from sweeper.cli.options import Invocation

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_ENDS = {"&&", "||", "|", ";", "&"}


def found(page: Path, *languages: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in languages]


def commands(block: Block) -> Iterator[list[str]]:
    """Every ``sweeper …`` of a block, its words; what is piped or chained is apart."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line.removeprefix("$ "), comments=True), "&&"]:
            if word not in _ENDS:
                words.append(word)
                continue
            if words and Path(words[0]).name == "sweeper":
                yield words[1:]
            words = []


def parse(words: list[str]) -> None:
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
def test_every_command_is_one_that_the_shell_and_the_command_line_take(block: Block) -> None:
    assert "<" not in block.text, "nobody can paste a placeholder"
    for words in commands(block):
        parse(words)
    if block.page == README.name:
        for word in re.findall(r"[\w./-]+\.(?:py|sh|yaml|md)\b|\btests/run\b", block.text):
            assert (ROOT / word).is_file(), word


def test_the_check_sees_commands_and_wrong_ones() -> None:
    typed = [words for block in CONSOLE for words in commands(block)]
    assert ["run", "studies/digits_learning_rate.py"] in typed
    assert ["resume", "digits-learning-rate"] in typed
    for wrong in (["run"], ["resume", "s", "--no-such-option"], ["no-such-verb"], ["ls", "more"]):
        with pytest.raises(Exception, match=r"(?i)missing|no such|unexpected|got"):
            parse(wrong)


PYTHON = found(README, "python")


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_every_python_block_of_the_readme_runs_as_it_stands(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a module, and its data made: the run under ``if __name__`` is the same as the command's."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pasted.py"
    file.write_text(block.text)
    names = runpy.run_path(str(file), run_name="pasted")
    names.get("load_data", len)(())


def test_the_readme_has_its_two_commands_and_its_python() -> None:
    assert len([block for block in CONSOLE if block.page == README.name]) >= 4
    assert len(PYTHON) == 2


def _run_study_block(directory: Path, compiled: str) -> subprocess.CompletedProcess[str]:
    """Save README's study as a file, with few epochs and trials, and run it as a script."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (block,) = [each for each in blocks if "study = Study(" in each]
    assert _COMPILED in block
    text = block.replace("epochs=30", "epochs=1").replace("trials=16", "trials=1")
    (directory / "study.py").write_text(text.replace(_COMPILED, compiled))
    words = [sys.executable, "study.py"]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)


_COMPILED = 'model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])'


def test_the_study_runs_to_its_end_as_the_script_that_it_is(tmp_path: Path) -> None:
    ended = _run_study_block(tmp_path, _COMPILED)
    assert ended.returncode == 0, ended.stderr
    assert "learning_rate" in ended.stdout


def test_control_a_study_whose_trials_all_fail_does_not_end_well(tmp_path: Path) -> None:
    broken = 'model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])'
    ended = _run_study_block(tmp_path, broken)
    assert ended.returncode != 0
    assert "is not a valid dtype" in ended.stderr, "it failed for another reason than the one planted"
