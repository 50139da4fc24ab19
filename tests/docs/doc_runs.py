"""Running pages in a process of their own, and what they said."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import shared_imports
from doc_blocks import ROOT, SHELL, Block, as_programs, blocks
from shared_commands import UNWATCHED, shared_commands

from sweeper.execution.launch.hash_seed import HASH_SEED

RUNNER = Path(__file__).with_name("page_runner.py")

_SERVER = ["-P", "-S", "-E", shared_imports.__file__]
"""What Python is to run for a forked warm server; before ``run`` and a file, for a forked program."""


def environment() -> dict[str, str]:
    """What a page's commands find: this interpreter's, and the ``sweeper`` beside it."""
    programs = Path(sys.executable).parent
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }


def runnable(page: Path, *, long: bool = False) -> list[Block]:
    """The blocks that are run or written, in order; with the long ones, if they are asked for."""
    markers = ("", "long") if long else ("",)
    return [
        block
        for block in blocks(page)
        if block.marker in markers and (block.file or block.language in ("python", *SHELL))
    ]


def checkout(directory: Path, *, epochs: int | None = None) -> Path:
    """A directory with what a checkout has that pages name.

    Args:
        directory: It.
        epochs: Of the study that pages go on from, if it is to train fewer than it says.
    """
    directory.mkdir()
    for name in ("studies", "examples"):
        shutil.copytree(ROOT / name, directory / name)
    if epochs is not None:
        file = directory / "studies" / "digits_learning_rate.py"
        text, found = re.subn(r"\bepochs=\d+", f"epochs={epochs}", file.read_text())
        assert found == 1
        file.write_text(text)
    return directory


def run_pages(
    places: Mapping[str, Path],
    directory: Path,
    blocks_of: Mapping[str, Sequence[Block]],
    *,
    installed: bool = False,
    watched: Collection[str] = (),
) -> dict[str, str]:
    """Run pages one after the other; the end of what each said, of those that failed.

    Args:
        places: Of each page, where it is run.
        directory: For what they print.
        blocks_of: Of each page, what is run.
        installed: Whether the shell's ``sweeper`` is the installed one; else it is forked from one
            process, and so are its servers.
        watched: The pages whose forked commands check a new study early, and audit its trials.
    """
    given = {
        name: as_programs([block for block in blocks_of[name] if block.language != "text"])
        for name in places
    }
    every = [block for found in given.values() for block in found]
    shared = not installed and any(each.language in SHELL or each.program for each in every)
    with _environment(directory, shared=shared) as here:
        jobs = [
            {
                "name": name,
                "directory": str(place),
                "environment": here if name in watched else {**here, UNWATCHED: "1"},
                "output": str(directory / f"{name.replace('/', '-')}.txt"),
                "server": _SERVER if shared else [],
                "blocks": [block.to_json() for block in given[name]],
            }
            for name, place in places.items()
        ]
        file = directory / "jobs.json"
        file.write_text(json.dumps(jobs))
        done = subprocess.run(
            [sys.executable, *([*_SERVER, "run"] if shared else []), str(RUNNER), str(file)],
            env={**os.environ, **here, **(HASH_SEED if shared else {})},
            stdout=subprocess.PIPE,
            stderr=None,
            text=True,
            check=False,
        )
    print(done.stdout)
    said = done.stdout.splitlines()
    failed = {name for name in places if not any(line.startswith(f"ok {name} ") for line in said)}
    return {
        job["name"]: Path(job["output"]).read_text()[-4000:]
        if Path(job["output"]).is_file()
        else "it did not begin"
        for job in jobs
        if job["name"] in failed
    }


@contextmanager
def _environment(directory: Path, *, shared: bool) -> Iterator[dict[str, str]]:
    """What pages find; with a ``sweeper`` that is forked, if so asked."""
    found = environment()
    with shared_commands(directory, found) if shared else nullcontext():
        yield found
