"""Runs the blocks of pages in order: ``python page_runner.py JOBS.json``.

A process of its own, or forked from one with TensorFlow, which has imported what every page imports and
has run nothing; each page is run in a process forked from it, as trials are from a warm server.

Each block is run as a reader runs it. One that is a program is saved as a file and run by Python as it
stands, with processes of their own for its trials. Any other of Python's is a cell of one notebook a page;
the shell's share directory and environment, and a block with a title is written to that file. Examples of
docstrings (``pycon``) begin with the page's names, each with its own. A cell's trials are run inline, which
makes the same trials without a server for each page.

What a page prints goes to a file beside its job. The first failing block ends its page: one that raises,
prints a traceback, has trials that fail or prints something else than the page shows (`look_at`).
"""

from __future__ import annotations

import contextlib
import doctest
import gc
import json
import os
import re
import runpy
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doc_blocks import without_guards


def main(jobs_file: str) -> None:
    jobs = json.loads(Path(jobs_file).read_text())
    if any("sweeper" in block["text"] for job in jobs for block in job["blocks"]):
        _import_what_pages_import()
    failed = [job["name"] for job in jobs if not _run_apart(job)]
    sys.exit(1 if failed else 0)


def _import_what_pages_import() -> None:
    from importlib import import_module

    sys.path.insert(0, str(Path(__file__).parent))
    import IPython.core.interactiveshell  # noqa: F401
    import optuna  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import tensorflow as tf
    from shared_commands import WHAT_COMMANDS_IMPORT

    import sweeper.definition
    from sweeper.execution.launch import warm_server

    warm_server._import_everything()
    for name in WHAT_COMMANDS_IMPORT:
        import_module(name)

    # Inline trials need the threads that their study has, and a page may run TensorFlow before.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    usable_cores = sweeper.definition.usable_cores
    sweeper.definition.usable_cores = lambda: 1
    _CELLS_NEED.extend(
        [
            lambda: tf.config.threading.set_intra_op_parallelism_threads(0),
            lambda: tf.config.threading.set_inter_op_parallelism_threads(0),
            lambda: setattr(sweeper.definition, "usable_cores", usable_cores),
        ]
    )
    # As a warm server does before it forks: a trial then collects what it has made itself.
    gc.collect()
    gc.freeze()


def _run_apart(job: dict) -> bool:
    begun = time.monotonic()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _run_page(job)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    cpu = used.ru_utime + used.ru_stime
    took = time.monotonic() - begun
    said = "ok" if status == 0 else "FAILED"
    print(f"{said} {job['name']} {took:.1f}s, {cpu:.1f}s CPU", flush=True)
    return status == 0


def _run_page(job: dict) -> None:
    os.chdir(job["directory"])
    os.environ.update(job["environment"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    if job["server"]:
        from sweeper.execution.launch import server_process

        server_process._SERVER = tuple(job["server"])
    page = types.ModuleType("__main__")
    sys.modules["__main__"] = page
    sys.argv = [""]
    sys.path.insert(0, str(Path.cwd()))
    shell = None
    wrong = 0
    programs = [
        Program(block, forked=bool(job["server"])) if block["program"] else None
        for block in job["blocks"]
    ]
    for block, program in zip(job["blocks"], programs, strict=True):
        sys.stdout.flush()
        print(f"--- {block['page']}:{block['line']}", flush=True)
        begun, failed = Path(job["output"]).stat().st_size, failed_trials()
        if block["file"]:
            Path(block["file"]).write_text(block["text"])
        elif block["language"] == "python":
            if program is not None:
                program.run()
            shell = shell or _notebook(page)
            _run_cell(shell, block)
        elif block["language"] == "pycon":
            wrong += _run_examples(block, vars(page))
        else:
            _run_shell(block["text"], job["output"] + ".after")
        sys.stdout.flush()
        look_at(block, Path(job["output"]).read_text()[begun:], failed_trials() - failed)
    if wrong:
        msg = f"{wrong} examples give something else than they say"
        raise AssertionError(msg)


class Program:
    """A block that is run as ``python FILE``, with processes of their own for its trials.

    Python imports what sweeper needs for some seconds, which is most of what a short program takes. So the
    program is forked from its page's process before anything has run there, and waits. Where pages are
    run with the installed command it is ``python FILE`` itself.

    Args:
        block: The block.
        forked: Whether it is forked.
    """

    def __init__(self, block: dict, *, forked: bool) -> None:
        stem = Path(block["page"]).with_suffix("").name
        self._file = Path(f"{stem.replace('-', '_').lower()}_{block['line']}.py")
        self._text = block["program"]
        self._child = 0
        if forked:
            waits, self._go = os.pipe()
            self._child = os.fork()
            if self._child == 0:
                os.close(self._go)
                self._wait(waits)
            os.close(waits)

    def run(self) -> None:
        """Run it to its end, in the present directory and environment; raise where it fails."""
        self._file.write_text(self._text)
        sys.stdout.flush()
        if not self._child:
            subprocess.run([sys.executable, str(self._file)], check=True)
            return
        surroundings = {"directory": str(Path.cwd()), "environment": dict(os.environ)}
        with os.fdopen(self._go, "w") as go:
            print(json.dumps(surroundings), file=go)
        _, status = os.waitpid(self._child, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            raise subprocess.CalledProcessError(code, f"python {self._file}")

    def _wait(self, waits: int) -> None:
        code = 1
        try:
            with os.fdopen(waits) as surroundings:
                given = json.loads(surroundings.readline() or "null")
            code = 0 if given is None else self._become(**given)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _become(self, directory: str, environment: dict[str, str]) -> int:
        """Be the program; its exit code."""
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        _undo_what_cells_need()
        if "SWEEPER_TEST_UNWATCHED" in environment:
            from shared_commands import leave_unwatched

            leave_unwatched(setattr)
        sys.argv = [str(self._file)]
        sys.path[0] = directory
        try:
            runpy.run_path(str(self._file), run_name="__main__")
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0


_CELLS_NEED: list[Callable[[], None]] = []
"""What takes back what was done for trials that run in the process of a page's cells."""


def _undo_what_cells_need() -> None:
    for undo in _CELLS_NEED:
        undo()


def _notebook(page: types.ModuleType) -> Any:
    """Return what runs a page's cells, in the namespace of ``page``."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config(
        {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
    )
    # No variable of its own stays: servers are forked for an environment that they know.
    os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
    try:
        return InteractiveShell(config=config, user_module=page)
    finally:
        del os.environ["IPYTHONDIR"]


def _run_cell(shell: Any, block: dict) -> None:
    """Run a block as a cell; what stands under its guard has been run as a program."""
    inline = {"SWEEPER_ISOLATION": "inline", "SWEEPER_WORKERS": "1"}
    if not block["marker"]:
        os.environ.update(inline)
    text = without_guards(block["text"]) if block["program"] else block["text"]
    sys.modules["__main__"] = shell.user_module
    shell.run_cell(text).raise_error()
    for name in inline:
        os.environ.pop(name, None)


def failed_trials() -> int:
    """Return how many trials of the studies below this directory have failed."""
    count = 0
    for file in Path.cwd().rglob("sweeper.db"):
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            query = "SELECT count(*) FROM sweeper_trials WHERE result = 'failed'"
            count += database.execute(query).fetchone()[0]
    return count


def look_at(block: dict, printed: str, failed: int) -> None:
    """Raise where a block that ended well has not done what its reader expects.

    A block that says itself how it ends, as in ``|| test $? -eq 3``, is about failures.

    Args:
        block: The block.
        printed: What it has printed, and said on standard error.
        failed: How many trials have failed in it.
    """
    where = f"{block['page']}:{block['line']}"
    if "|| test $?" not in block["text"]:
        assert failed <= 0, f"{where}: {failed} trials failed"
        assert "Traceback (most recent call last)" not in printed, f"{where}: prints a traceback"
    # Lines of one shape are rows of a table, of which a run may have fewer.
    given = _shape(printed)
    for line in dict.fromkeys(_shape(block["shown"])):
        found = [index for index, each in enumerate(given) if each.startswith(line)]
        assert found, f"{where}: shows {line!r}, prints {given}"
        del given[: found[0] + 1]


def _shape(text: str) -> list[str]:
    """Return the lines without what differs from run to run: numbers, widths, what is left out (…)."""
    number = r"(?<![A-Za-z\d])-?\d[\d.]*(?:e[-+]\d+)?|(?<!\S)-(?!\S)"
    lines = (re.sub(number, "#", line.split("…")[0]) for line in text.splitlines())
    return [shaped for line in lines if (shaped := " ".join(line.split()))]


def _run_examples(block: dict, names: dict) -> int:
    """Run the examples of a docstring, which begin with the page's names; how many went wrong."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=options)
    test = parser.get_doctest(
        block["text"], dict(names), block["page"], block["page"], block["line"]
    )
    return runner.run(test).failed


def _run_shell(text: str, after: str) -> None:
    """Run a block of the shell; what it changes of directory and environment is there for the next."""
    program = f"{text}\npwd > {after}\nenv -0 >> {after}\n"
    subprocess.run(["bash", "-euo", "pipefail", "-c", program], check=True)
    directory, _, variables = Path(after).read_text().partition("\n")
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(each.split("=", 1) for each in variables.split("\0") if "=" in each)


if __name__ == "__main__":
    main(sys.argv[1])
