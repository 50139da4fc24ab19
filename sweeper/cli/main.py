"""The ``sweeper`` command: it runs a verb, and turns errors into exit codes.

It imports the modules of all verbs, so each imports slow modules only in its functions.

Exit codes: 0 done, 1 error, 2 usage, 3 done but trials failed, 4 a promise does not hold, 130
interrupted and resumable. An error of `sweeper.errors` has its own code. Tracebacks of sweeper's
code are shown only with ``--debug`` or ``SWEEPER_DEBUG=1``; a traceback of the user's code is shown
once.
"""

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sweeper.cli import annotating, checking, keeping, reading, running
from sweeper.cli.options import Debug, Invocation, Verb
from sweeper.errors import Interrupted, StudyImportError, SweeperError
from sweeper.run.signals import early_termination
from sweeper.support.installation import VERSION
from sweeper.support.shown import shown_error, shown_text

_PARSER_ERROR: Any = typer.BadParameter.__mro__[2]
"""Click's base class of errors; newer versions of typer contain a copy of Click."""

VERBS: dict[str, tuple[Verb, ...]] = {
    "Begin": (keeping.init, checking.doctor),
    "Run": (
        *(running.run, running.resume, running.extend, running.confirm),
        *(running.worker, running.stop, running.retry, annotating.observe),
    ),
    "Check": (checking.check, checking.verify, checking.evaluate),
    "Read": (
        *(reading.ls, reading.status, reading.show, reading.best, reading.compare),
        *(reading.logs, reading.report, reading.dashboard),
    ),
    "Keep": (
        *(annotating.tag, annotating.note, annotating.hide),
        *(keeping.export, keeping.gc, keeping.rm),
    ),
}
"""The verbs by their heading in the help."""

DATABASE_VERBS: tuple[Verb, ...] = (keeping.upgrade, keeping.copy)
"""The verbs of ``sweeper db``."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"sweeper {VERSION}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    _debug: Debug = False,
) -> None:
    """Run experiment sweeps for Keras whose results can be trusted.

    Trials are independent, resume exactly where they were, and run once each.
    """


class _Commands(TyperGroup):
    """Group of the verbs; it removes passwords from the parser's messages."""

    def make_context(self, *words: Any, **settings: Any) -> Any:
        with _quoting_no_secret():
            return super().make_context(*words, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _quoting_no_secret():
            return super().invoke(ctx)


@contextlib.contextmanager
def _quoting_no_secret() -> Iterator[None]:
    try:
        yield
    except _PARSER_ERROR as error:
        error.message = shown_text(_expected(error) or error.message)
        raise


def _expected(error: Any) -> str | None:
    """Return the found and the expected value, if the parser's message lacks the former."""
    detail = getattr(error.__cause__, "errors", lambda: ())()
    if not detail:
        # For a missing argument, the help text describes what is expected.
        return error.message or getattr(getattr(error, "param", None), "help", None)
    kind = detail[0]["type"]
    bounds = detail[0].get("ctx", {})
    expected = {
        "int_parsing": "a whole number",
        "float_parsing": "a number",
        "greater_than_equal": f"at least {bounds.get('ge')}",
        "less_than_equal": f"at most {bounds.get('le')}",
    }
    if kind not in expected:
        return None
    return f"found {detail[0]['input']!r}; expected {expected[kind]}"


def _build() -> typer.Typer:
    built = typer.Typer(
        name="sweeper",
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    built.callback()(_root)
    for title, verbs in VERBS.items():
        for verb in verbs:
            built.command(rich_help_panel=title)(verb)
    database = typer.Typer(help="Database", no_args_is_help=True)
    built.add_typer(database, name="db", rich_help_panel="Database")
    for verb in DATABASE_VERBS:
        database.command(rich_help_panel="Database")(verb)
    return built


app = _build()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after ``sweeper``; by default those of the process. In that case the
            process ends afterwards, and SIGTERM is ignored once this returns.
    """
    if arguments is not None or threading.current_thread() is not threading.main_thread():
        return _run(arguments)
    try:
        with early_termination():
            return _run(None)
    except Interrupted as late:
        typer.echo(f"interrupted: {late}", err=True)
        return late.exit_code
    finally:
        # The result is printed, so a late SIGTERM must not change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Without it Python's last collections visit a million objects, for 0.3 s.
        gc.freeze()


def _run(arguments: Sequence[str] | None) -> int:
    invocation = Invocation(debug=os.environ.get("SWEEPER_DEBUG", "") not in {"", "0"})
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Under an encoding without it, such as ASCII, a sign is better escaped than the end of the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        typer.main.get_command(app)(args=arguments, prog_name="sweeper", obj=invocation)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SweeperError as error:
        return _print_error(error, invocation)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            typer.echo(f"error: the output cannot be written: {error.strerror}", err=True)
            return 1
        return _print_unexpected(error, invocation)
    return 0


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of a full or broken disk; those of files of a study have been told in their own words."""


def _print_error(error: SweeperError, invocation: Invocation) -> int:
    if isinstance(error, StudyImportError) and error.traceback:
        typer.echo(error.traceback.rstrip("\n"), err=True)
    elif invocation.debug:
        _print_traceback(error)
    typer.echo(
        f"{'interrupted' if isinstance(error, Interrupted) else 'error'}: {shown_text(str(error))}",
        err=True,
    )
    return error.exit_code


def _print_unexpected(error: Exception, invocation: Invocation) -> int:
    if invocation.debug:
        _print_traceback(error)
    summary = shown_text(" ".join(shown_error(error).split()))
    advice = "" if invocation.debug else " (--debug shows where)"
    typer.echo(f"error: {summary}; this is a bug in sweeper{advice}", err=True)
    return 1


def _print_traceback(error: Exception) -> None:
    import traceback

    typer.echo(shown_text("".join(traceback.format_exception(error))), err=True, nl=False)
