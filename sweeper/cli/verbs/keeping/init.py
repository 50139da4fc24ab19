"""``init``: write a commented study file that runs as it is."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import Debug
from sweeper.errors import SweeperError, UsageError
from sweeper.paths import is_name

TEMPLATES = ("arrays", "tf-data", "step")
"""What the data are, or, last, that the training step is the user's own."""


def init(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="The file to write.", show_default=False)
    ] = Path("study.py"),
    *,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            metavar="|".join(TEMPLATES),
            help="NumPy arrays, a tf.data pipeline, or your own training step.",
            autocompletion=lambda: list(TEMPLATES),
        ),
    ] = TEMPLATES[0],
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Overwrite an existing file.")
    ] = False,
    _debug: Debug = False,
) -> None:
    """Write a study file that runs as it is, for you to change; study.py by default."""
    if template not in TEMPLATES:
        msg = f"--template {template}: there is none such; expected {', '.join(TEMPLATES)}"
        raise UsageError(msg)
    if file.suffix != ".py":
        msg = f"{str(file)!r} does not end in .py, as a study's file must; try {file}.py"
        raise UsageError(msg)
    words = {"file": shlex.quote(str(file)), "name": _name(file)}
    text = (files("sweeper.cli") / "templates" / f"{template}.py.txt").read_text("utf-8")
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        msg = f"{file} is there already; name another file, or overwrite it with --force"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror or error}; name another file"
        raise SweeperError(msg) from error
    typer.echo(f"{file} holds the study {words['name']!r}; next:")
    for verb in ("check", "run"):
        typer.echo(f"  sweeper {verb} {words['file']}")


def _name(file: Path) -> str:
    """Return a valid study name made from the file's name."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in file.stem).strip("-")
    if name in {"", "study"}:
        return "first-study"
    return name if is_name(name) else "first-study"
