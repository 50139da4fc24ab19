"""Runs the blocks of a page in order: ``python page_runner.py JOB.json``.

Each block is run as a reader runs it. One that is a program is saved as a file and run by Python as it
stands, with processes of their own for its trials. Any other of Python's is a cell of one notebook a page;
the shell's share directory and environment, and a block with a title is written to that file. Examples of
docstrings (``pycon``) begin with the page's names, each with its own. A cell's trials are run inline, which
makes the same trials without a server for each page.

What a page prints goes to a file beside its job. The first failing block ends its page: one that raises,
prints a traceback, has trials that fail or prints something else than the page shows (`look_at`).
"""

import contextlib
import doctest
import gc
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from doc_blocks import without_guards


def main(job_file):
    job = json.loads(Path(job_file).read_text())
    os.chdir(job["directory"])
    os.environ.update(job["environment"])
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    if any("sweeper" in block["text"] for block in job["blocks"]):
        _prepare_inline_trials()
    run_page(job)


def _prepare_inline_trials():
    """Trials of cells need the threads that their study has, and a page may run TensorFlow before."""
    import tensorflow as tf

    import sweeper.definition.definition

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sweeper.definition.definition.usable_cores = lambda: 1
    # As a fork server does before it forks: a trial then collects what it has made itself.
    gc.collect()
    gc.freeze()


def run_page(job):
    page = types.ModuleType("__main__")
    sys.modules["__main__"] = page
    sys.argv = [""]
    sys.path.insert(0, str(Path.cwd()))
    shell = None
    wrong = 0
    for block in job["blocks"]:
        sys.stdout.flush()
        print(f"--- {block['page']}:{block['line']}", flush=True)
        offset = Path(job["output"]).stat().st_size
        failed = failed_trials()
        if block["file"]:
            Path(block["file"]).write_text(block["text"])
        elif block["language"] == "python":
            if block["program"]:
                _run_program(block)
            shell = shell or _notebook(page)
            _run_cell(shell, block)
        elif block["language"] == "pycon":
            wrong += _run_examples(block, vars(page))
        else:
            _run_shell(block["text"], job["output"] + ".after")
        sys.stdout.flush()
        # The offset is in bytes, of which a character may have several.
        printed = Path(job["output"]).read_bytes()[offset:].decode()
        look_at(block, printed, failed_trials() - failed)
    if wrong:
        raise AssertionError(f"{wrong} examples give something else than they say")


def _run_program(block):
    """Run a block as ``python FILE``, which has processes of its own for its trials."""
    stem = Path(block["page"]).with_suffix("").name
    file = f"{stem.replace('-', '_').lower()}_{block['line']}.py"
    Path(file).write_text(block["program"])
    sys.stdout.flush()
    subprocess.run(["python", file], check=True)


def _notebook(page):
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


def _run_cell(shell, block):
    """Run a block as a cell; what stands under its guard has been run as a program."""
    inline = {"SWEEPER_ISOLATION": "inline", "SWEEPER_WORKERS": "1"}
    if not block["marker"]:
        os.environ.update(inline)
    text = without_guards(block["text"]) if block["program"] else block["text"]
    sys.modules["__main__"] = shell.user_module
    shell.run_cell(text).raise_error()
    for name in inline:
        os.environ.pop(name, None)


def failed_trials():
    """Return how many trials of the studies below this directory have failed."""
    count = 0
    for file in Path.cwd().rglob("sweeper.db"):
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            query = "SELECT count(*) FROM sweeper_trials WHERE result = 'failed'"
            count += database.execute(query).fetchone()[0]
    return count


def look_at(block, printed, failed):
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
    lines = _shape(printed)
    for line in dict.fromkeys(_shape(block["shown"])):
        matches = [index for index, candidate in enumerate(lines) if candidate.startswith(line)]
        assert matches, f"{where}: shows {line!r}, prints {lines}"
        del lines[: matches[0] + 1]


def _shape(text):
    """Return the lines without what differs from run to run: numbers, widths, what is left out (…)."""
    number = r"(?<![A-Za-z\d])-?\d[\d.]*(?:e[-+]\d+)?|(?<!\S)-(?!\S)"
    # A faster machine shows milliseconds where a slower one shows seconds.
    shaped_lines = (re.sub(number, "#", line.split("…")[0]) for line in text.splitlines())
    lines = (re.sub(r"#ms\b", "#s", line) for line in shaped_lines)
    # Which states there are depends on the moment at which the page's kill comes.
    lines = (re.sub(r"(?<=#/# done)(, # [a-z]+)+", ", # …", line) for line in lines)
    return [shaped for line in lines if (shaped := " ".join(line.split()))]


def _run_examples(block, names):
    """Run the examples of a docstring, which begin with the page's names; how many went wrong."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(optionflags=options)
    test = parser.get_doctest(
        block["text"], dict(names), block["page"], block["page"], block["line"]
    )
    return runner.run(test).failed


def _run_shell(text, after):
    """Run a block of the shell; what it changes of directory and environment is there for the next."""
    program = f"{text}\npwd > {after}\nenv -0 >> {after}\n"
    subprocess.run(["bash", "-euo", "pipefail", "-c", program], check=True)
    directory, _, variables = Path(after).read_text().partition("\n")
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(
        variable.split("=", 1) for variable in variables.split("\0") if "=" in variable
    )


if __name__ == "__main__":
    main(sys.argv[1])
