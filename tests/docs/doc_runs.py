"""Running pages in a process of their own, and what they said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from doc_blocks import ROOT, SHELL, Block, blocks
from shared_commands import shared_commands

RUNNER = Path(__file__).with_name("page_runner.py")


def environment() -> dict[str, str]:
    """What a page's commands find: this interpreter's, and the ``sweeper`` beside it."""
    programs = Path(sys.executable).parent
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
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


def checkout(directory: Path) -> Path:
    """A directory with what a checkout has that pages name."""
    directory.mkdir()
    for name in ("studies", "examples"):
        shutil.copytree(ROOT / name, directory / name)
    return directory


def run_pages(
    places: Mapping[str, Path],
    directory: Path,
    blocks_of: Mapping[str, Sequence[Block]],
    *,
    installed: bool = False,
) -> dict[str, str]:
    """Run pages one after the other; the end of what each said, of those that failed.

    Args:
        places: Of each page, where it is run.
        directory: For what they print.
        blocks_of: Of each page, what is run.
        installed: Whether the shell's ``sweeper`` is the installed one; else it is forked from one
            process, and so are its servers.
    """
    every = [block for name in places for block in blocks_of[name]]
    shared = not installed and any(each.language in SHELL for each in every)
    with _environment(directory, shared=shared) as here:
        jobs = [
            {
                "name": name,
                "directory": str(place),
                "environment": here,
                "output": str(directory / f"{name.replace('/', '-')}.txt"),
                "blocks": [block.to_json() for block in blocks_of[name]],
            }
            for name, place in places.items()
        ]
        file = directory / "jobs.json"
        file.write_text(json.dumps(jobs))
        done = subprocess.run(
            [sys.executable, str(RUNNER), str(file)],
            env={**os.environ, **here},
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
