"""Runs the blocks of pages in order: ``python page_runner.py JOBS.json``.

A process of its own, or forked from one with TensorFlow, which has imported what every page imports and
has run nothing; each page is run in a process forked from it, as trials are from a warm server. Within a
page Python's blocks share one namespace, the shell's share directory and environment, and a block with a
title is written to that file. Examples of docstrings (``pycon``) begin with the page's names, each with
its own.
What a page prints goes to a file beside its job; the first failing block ends its page.

Python's trials are run inline, which makes the same trials without a server for each page. An example's
servers are forked as those of the shell's commands are, if there are any.
"""

from __future__ import annotations

import doctest
import gc
import json
import os
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path


def main(jobs_file: str) -> None:
    jobs = json.loads(Path(jobs_file).read_text())
    if any("sweeper" in block["text"] for job in jobs for block in job["blocks"]):
        _import_what_pages_import()
    failed = [job["name"] for job in jobs if not _run_apart(job)]
    sys.exit(1 if failed else 0)


def _import_what_pages_import() -> None:
    from importlib import import_module

    sys.path.insert(0, str(Path(__file__).parent))
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
    sweeper.definition.usable_cores = lambda: 1
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
    page.__file__ = str(Path(job["output"]).with_suffix(".py"))
    sys.modules["__main__"] = page
    sys.argv = [page.__file__]
    sys.path.insert(0, str(Path.cwd()))
    source = ""
    wrong = 0
    for block in job["blocks"]:
        sys.stdout.flush()
        print(f"--- {block['page']}:{block['line']}", flush=True)
        if block["file"]:
            Path(block["file"]).write_text(block["text"])
        elif block["language"] == "python":
            source += "\n" * (block["line"] - 1 - source.count("\n")) + block["text"]
            Path(page.__file__).write_text(source)
            padded = "\n" * (block["line"] - 1) + block["text"]
            inline = {"SWEEPER_ISOLATION": "inline", "SWEEPER_WORKERS": "1"}
            if not block["marker"]:
                os.environ.update(inline)
            exec(compile(padded, page.__file__, "exec"), vars(page))
            for name in inline:
                os.environ.pop(name, None)
        elif block["language"] == "pycon":
            wrong += _run_examples(block, vars(page))
        else:
            _run_shell(block["text"], job["output"] + ".after")
    if wrong:
        msg = f"{wrong} examples give something else than they say"
        raise AssertionError(msg)


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
