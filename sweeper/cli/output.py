"""How data reaches standard output: strict JSON or a table.

JSON has no NaN and no infinities (RFC 8259), and Python's encoder would write them all the same. A
value that is not finite is therefore written as ``null``.
"""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["print_json", "print_table", "strict"]


def strict(value: Any) -> Any:
    """Return ``value`` with every float that is not finite replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print one JSON value, indented, in UTF-8, on standard output."""
    typer.echo(json.dumps(strict(value), allow_nan=False, ensure_ascii=False, indent=2))


def print_table(table: "RenderableType") -> None:
    """Print what rich can draw on standard output.

    Piped, there is no terminal whose width could be kept to: lines are as long as their content,
    so that ``grep`` and ``awk`` find whole rows.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_WIDTH)
    console.print(table)


_PIPE_WIDTH = 1000
