"""Names of studies as they are typed: checked, and what was given in a name's place explained."""

import ast
import contextlib
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sweeper.errors import DefinitionError
from sweeper.paths import check_name, is_name

if TYPE_CHECKING:
    from sweeper.settings import Settings


def study_name(text: str) -> str:
    """Return ``text`` if it can be a study's name.

    Raises:
        typer.BadParameter: It cannot, or it is the file that defines one.
    """
    path = Path(text)
    if path.suffix == ".py" or (path.parent != Path() and path.is_file()):
        raise typer.BadParameter(_file_not_name(path))
    try:
        return check_name(text)
    except DefinitionError as error:
        raise typer.BadParameter(str(error)) from None


def stored_hint(source: str, settings: "Settings") -> str:
    """Return the command for a stored study whose name was typed instead of a file; empty if there is none.

    It follows an error that is there already, so whatever goes wrong here is nothing to add.
    """
    names: tuple[str, ...] = ()
    if is_name(source):
        with contextlib.suppress(Exception):
            from sweeper.storage.database import Database
            from sweeper.storage.names import study_names

            with Database.open(settings.storage, create=False, patience=1.0) as database:
                names = study_names(database)
    near = difflib.get_close_matches(source, names, n=1)
    if not near:
        return ""
    seen = "has a study of this name" if near[0] == source else f"has a study {near[0]!r}"
    return f"; the database {seen}, which `{settings.command('resume', near[0])}` goes on with"


def _file_not_name(path: Path) -> str:
    names = _names_in(path)
    if names:
        hint = f"it defines {' and '.join(map(repr, names))}: give that name"
    else:
        hint = "`sweeper ls` lists the studies that are stored"
    there = "is a file" if path.is_file() else "looks like a file"
    return f"{str(path)!r} {there}, and a study's name was expected; {hint}"


def _names_in(path: Path) -> list[str]:
    """Return the names of the studies that a file defines literally; the file is not run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) == "Study"
        for keyword in node.keywords
        if keyword.arg == "name"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    ]
