"""Every block of the pages and docstrings runs as a reader runs it, to its end, in the page's order."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from doc_blocks import ROOT, SHELL, Block, all_pages, as_programs, blocks, blocks_of, has_guard
from forked_programs import ADDRESS, PROGRAM, programs_for_shells
from public_docstrings import examples

README = "README.md"
TUTORIAL = "docs/tutorial/index.md"
EXAMPLES = "docs/reference/index.md"
OWN_TESTS = (README, TUTORIAL, EXAMPLES)
"""Pages that are run in a directory of their own, with nothing from the guides in it."""

FIRST = "docs/how-to/index.md"
"""The page whose study the others go on from."""


GUIDE = "docs/how-to/from-a-keras-script.md"

TUTORIAL_TRIALS = 3
FEWER = {
    README: {"trials=16,": "trials=3,", "epochs=30,": "epochs=2,"},
    TUTORIAL: {" trials=5,": f" trials={TUTORIAL_TRIALS},"},
    GUIDE: {" trials=2,": " trials=1,"},
}
"""Of pages whose studies train fewer trials by default, what they say and what is run instead."""


RUNNER = Path(__file__).parents[1] / "harness" / "page_runner.py"


def environment():
    """What a page's commands find: this interpreter's, and the ``sweeper`` beside it."""
    programs = Path(sys.executable).parent
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }


def runnable(page, *, long=False):
    """The blocks that are run or written, in order; with the long ones, if they are asked for."""
    markers = ("", "long") if long else ("",)
    return [
        block
        for block in blocks(page)
        if block.marker in markers and (block.file or block.language in ("python", *SHELL))
    ]


def checkout(directory, *, epochs=None):
    """A directory with what a checkout has that pages name."""
    directory.mkdir()
    for name in ("studies", "examples"):
        shutil.copytree(ROOT / name, directory / name)
    if epochs is not None:
        file = directory / "studies" / "digits_learning_rate.py"
        text, count = re.subn(r"\bepochs=\d+", f"epochs={epochs}", file.read_text())
        assert count == 1
        file.write_text(text)
    return directory


def run_pages(places, directory, blocks_of, *, installed=False):
    """Run pages one after the other; the end of what each said, of those that failed."""
    failed = {}
    here = environment()
    if not installed:
        programs = directory / "programs"
        programs_for_shells(programs)
        here |= {"PATH": f"{programs}{os.pathsep}{here['PATH']}", ADDRESS: os.environ[ADDRESS]}
    for name, place in places.items():
        blocks = as_programs([block for block in blocks_of[name] if block.language != "text"])
        file = directory / f"{name.replace('/', '-')}.json"
        output = file.with_suffix(".txt")
        job = {
            "directory": str(place),
            "environment": here,
            "output": str(output),
            "blocks": [block.to_json() for block in blocks],
        }
        file.write_text(json.dumps(job))
        start = time.monotonic()
        process = subprocess.run(
            [sys.executable, *(() if installed else PROGRAM), str(RUNNER), str(file)],
            env={**os.environ, **here},
            check=False,
        )
        outcome = "ok" if process.returncode == 0 else "FAILED"
        print(f"{outcome} {name} {time.monotonic() - start:.1f}s", flush=True)
        if process.returncode:
            failed[name] = output.read_text()[-4000:] if output.is_file() else "it did not begin"
    return failed


def pages_here():
    names = [str(path.relative_to(ROOT)) for path in all_pages()]
    names = [name for name in names if name not in OWN_TESTS and runnable(ROOT / name)]
    return sorted(names, key=lambda name: (name != FIRST, name))


def with_fewer_trials(page, blocks):
    """A page's blocks as they are run by default."""
    for old, new in FEWER.get(page, {}).items():
        assert sum(block.text.count(old) for block in blocks) == 1, (page, old)
        blocks = [replace(block, text=block.text.replace(old, new)) for block in blocks]
    return blocks


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The empty directory of the tutorial."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def failures(tmp_path_factory, home):
    """Of each page of the default run that failed, what it said last."""
    directory = tmp_path_factory.mktemp("pages")
    place = checkout(directory / "checkout", epochs=3)
    names = (GUIDE, README, TUTORIAL)
    pages = {name: with_fewer_trials(name, runnable(ROOT / name)) for name in names}
    places = {
        **dict.fromkeys(pages, place),
        README: tmp_path_factory.mktemp("apart"),
        TUTORIAL: home,
    }
    return run_pages(places, directory, pages)


@pytest.fixture(scope="module")
def failures_of_all(tmp_path_factory):
    """As `failures`, of every page as it stands, and of the docstrings' examples."""
    directory = tmp_path_factory.mktemp("whole")
    place = checkout(directory / "checkout")
    pages = {name: runnable(ROOT / name, long=True) for name in (*pages_here(), EXAMPLES)}
    pages[EXAMPLES] += examples()
    places = {**dict.fromkeys(pages, place), EXAMPLES: tmp_path_factory.mktemp("apart")}
    return run_pages(places, directory, pages, installed=True)


@pytest.mark.pages
@pytest.mark.parametrize("page", pages_here())
def test_a_page_runs_as_it_stands_with_the_installed_command(page, failures_of_all):
    assert page not in failures_of_all, failures_of_all[page]


@pytest.mark.pages
def test_every_example_of_a_docstring_gives_what_it_says(failures_of_all):
    assert EXAMPLES not in failures_of_all, failures_of_all[EXAMPLES]


@pytest.mark.parametrize("page", [GUIDE, README])
def test_a_page_runs_with_fewer_trials(page, failures):
    assert page not in failures, failures[page]


def test_control_an_example_that_gives_something_else_fails(tmp_path):
    wrong = Block("sweeper.wrong", 1, "pycon", ">>> 1 + 1\n3")
    outputs = run_pages({"wrong": tmp_path}, tmp_path, {"wrong": [wrong]})
    assert "Expected:\n    3\nGot:\n    2" in outputs["wrong"]


def check_tutorial(home, trials):
    """A new user has got a resumed and verified sweep."""
    database = sqlite3.connect(home / "first-sweep" / "runs" / "sweeper.db")
    of_study = "SELECT result FROM sweeper_trials t JOIN sweeper_studies s ON s.id = t.study_id"
    results = database.execute(f"{of_study} WHERE s.name = 'first-sweep'").fetchall()
    assert results == [("complete",)] * trials
    confirmed = database.execute(f"{of_study} WHERE s.name = 'first-sweep~confirm'").fetchall()
    assert confirmed == [("complete",)] * 10
    went_on = "SELECT count(*) FROM sweeper_attempts WHERE number > 1 AND start_step > 0"
    assert database.execute(went_on).fetchone()[0] >= 1, "the kill came between the checkpoints"
    verdicts = database.execute("SELECT mode, verdict FROM sweeper_verdicts ORDER BY id").fetchall()
    assert verdicts == [("replay", "holds"), ("interrupt", "holds")]
    database.close()


def test_the_tutorial_typed_in_an_empty_directory_does_what_it_says(home, failures):
    assert TUTORIAL not in failures, failures[TUTORIAL]
    check_tutorial(home, TUTORIAL_TRIALS)


@pytest.mark.pages
def test_the_tutorials_long_block_runs_too(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    pages = {TUTORIAL: runnable(ROOT / TUTORIAL, long=True)}
    assert run_pages({TUTORIAL: home}, tmp_path, pages, installed=True) == {}
    check_tutorial(home, 5)


[README_STUDY] = with_fewer_trials(
    README, [block for block in blocks(ROOT / README) if "Study(" in block.text]
)
README_AS_IT_WAS = README_STUDY.text.replace('metrics=["accuracy"]', '["accuracy"]')
"""Keras's third argument of ``compile`` is ``loss_weights``: every trial fails, and ``run`` returns."""

BROKEN = {
    "cell": ("```python\nx = 1\n```\n\n```python\nassert x == 2, 'not two'\n```\n", "not two"),
    "traceback": (
        "```console\npython -c 'import no_such_module' || true\n```\n",
        "prints a traceback",
    ),
    "shown": ("```console\necho 3 of 5 done\n```\n\n```text\n4 of 9 left\n```\n", "# of # left"),
}
"""A page of each kind that must fail, and what is said of it."""


@pytest.fixture(scope="module")
def failures_of_broken(tmp_path_factory):
    directory = tmp_path_factory.mktemp("broken")
    pages = {name: blocks_of(text, f"{name}.md") for name, (text, _) in BROKEN.items()}
    quiet = "\n".join(line for line in README_AS_IT_WAS.splitlines() if "print(" not in line)
    # Three that fail alike would end the run with an error.
    assert quiet.count("trials=3,") == 1
    quiet = quiet.replace("trials=3,", "trials=2,")
    pages["ends-well"] = [replace(README_STUDY, text=quiet)]
    places = {name: directory / name for name in pages}
    for place in places.values():
        place.mkdir()
    return run_pages(places, directory, pages)


@pytest.mark.whole
@pytest.mark.parametrize("kind", BROKEN)
def test_control_a_block_that_ends_otherwise_than_its_reader_expects_fails(
    kind, failures_of_broken
):
    output = failures_of_broken[kind]
    assert BROKEN[kind][1] in output
    assert f"{kind}.md:" in output


@pytest.mark.whole
def test_control_a_block_whose_trials_all_fail_fails_though_it_ends_well(failures_of_broken):
    assert re.search(r"README\.md:\d+: \d trials failed", failures_of_broken["ends-well"])


def test_what_stands_under_a_guard_is_run_by_each_page():
    """In the default run: as a program of the page, or where a page writes a file, by its command."""
    for page in all_pages():
        programs = as_programs(blocks(page))
        for block in programs:
            if block.language == "python" and has_guard(block.text):
                typed = f"python {block.file}" if block.file else ""
                commands = "".join(other.text for other in programs if other.language in SHELL)
                assert block.program or typed in commands, f"{block} is never run as a program"
                assert not block.marker, f"{block} is left out of the default run"
