"""The ``sweeper`` command: it gathers the verbs, runs one, and turns errors into exit codes.

Exit codes: 0 done, 1 error, 2 usage, 3 done but trials failed, 4 a promise does not hold,
130 interrupted and resumable. An error of `sweeper.errors` carries its own code. No traceback of
ours is shown unless ``--debug`` or ``SWEEPER_DEBUG=1`` asks for it; the user's own is shown once.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import sweeper.cli
from sweeper.cli.options import Debug
from sweeper.cli.verbs import Invocation, VerbGroup
from sweeper.errors import StudyImportError, SweeperError

__all__ = ["app", "main"]


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"sweeper {version('sweeper')}")
        except PackageNotFoundError:
            typer.echo("sweeper (run from a directory, not installed)")
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


def _groups() -> list[VerbGroup]:
    names = [module.name for module in pkgutil.iter_modules(sweeper.cli.__path__)]
    modules = [
        importlib.import_module(f"{sweeper.cli.__name__}.{name}")
        for name in names
        if name != __name__.rpartition(".")[2]
    ]
    found = [module.GROUP for module in modules if hasattr(module, "GROUP")]
    return sorted(found, key=lambda group: group.order)


def _build() -> typer.Typer:
    built = typer.Typer(
        name="sweeper",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    built.callback()(_root)
    for group in _groups():
        target = built
        if group.under:
            target = typer.Typer(help=group.title, no_args_is_help=True)
            built.add_typer(target, name=group.under, rich_help_panel=group.title)
        for verb in group.verbs:
            target.command(rich_help_panel=group.title)(verb)
    return built


app = _build()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after ``sweeper``; by default those that the process was given.
    """
    invocation = Invocation(debug=os.environ.get("SWEEPER_DEBUG", "") not in {"", "0"})
    try:
        typer.main.get_command(app)(args=arguments, prog_name="sweeper", obj=invocation)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except SweeperError as error:
        return _say(error, invocation)
    except Exception as error:
        return _say_unexpected(error, invocation)
    return 0


def _say(error: SweeperError, invocation: Invocation) -> int:
    if isinstance(error, StudyImportError) and error.traceback:
        typer.echo(error.traceback.rstrip("\n"), err=True)
    elif invocation.debug:
        _print_traceback(error)
    typer.echo(f"error: {error}", err=True)
    return error.exit_code


def _say_unexpected(error: Exception, invocation: Invocation) -> int:
    if invocation.debug:
        _print_traceback(error)
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    advice = "" if invocation.debug else " (--debug shows where)"
    typer.echo(f"error: {summary}; this is a bug in sweeper{advice}", err=True)
    return 1


def _print_traceback(error: Exception) -> None:
    import traceback

    traceback.print_exception(error, file=sys.stderr)
