"""Running pages in a process of their own, and what they said."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from doc_blocks import ROOT, SHELL, as_programs, blocks
from forked_programs import ADDRESS, PROGRAM, programs_for_shells

RUNNER = Path(__file__).with_name("page_runner.py")


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
        text, found = re.subn(r"\bepochs=\d+", f"epochs={epochs}", file.read_text())
        assert found == 1
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
        found = as_programs([block for block in blocks_of[name] if block.language != "text"])
        file = directory / f"{name.replace('/', '-')}.json"
        output = file.with_suffix(".txt")
        job = {
            "directory": str(place),
            "environment": here,
            "output": str(output),
            "blocks": [block.to_json() for block in found],
        }
        file.write_text(json.dumps(job))
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, *(() if installed else PROGRAM), str(RUNNER), str(file)],
            env={**os.environ, **here},
            check=False,
        )
        said = "ok" if done.returncode == 0 else "FAILED"
        print(f"{said} {name} {time.monotonic() - begun:.1f}s", flush=True)
        if done.returncode:
            failed[name] = output.read_text()[-4000:] if output.is_file() else "it did not begin"
    return failed
