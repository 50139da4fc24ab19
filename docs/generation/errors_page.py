"""The page of exit codes and of the error tree, made from ``sweeper/errors.py``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from sweeper import errors

_CODES = {
    0: "done",
    1: "an error; standard error says what was seen, what was expected and what to do",
    2: "usage: the command names something that is not there, or cannot be understood",
    3: "done, but trials failed (`run`, `resume`, `worker`), or not every checkpoint could be "
    "measured (`evaluate`)",
    4: "a promise does not hold (`check`, `verify`, and a run whose audit found a difference)",
    130: "interrupted; everything can be resumed, and the command to do it is printed",
}

_HEAD = """# Exit codes and errors

<!-- Made from `sweeper/errors.py`. -->

## Exit codes

| Code | Meaning | Errors of Python that end with it |
|---|---|---|
"""

_MIDDLE = """
## The error tree

Every error that sweeper raises on purpose is a `SweeperError`. Its message says what was seen, what was expected and
what to do next; its attribute `exit_code` is what the command line ends with.

"""


_NAMES = sorted(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.SweeperError)
)


def page() -> str:
    """The whole page, as Markdown."""
    tree = (inspect.getdoc(errors) or "").partition("::\n\n")[2].partition("\n\nEach message")[0]
    tree = inspect.cleandoc(tree)
    entries = "\n\n".join(f"::: sweeper.errors.{name}" for name in _NAMES)
    return f"{_HEAD}{chr(10).join(_rows())}\n{_MIDDLE}```text\n{tree}\n```\n\n{entries}\n"


def _rows() -> Iterator[str]:
    by_code: dict[int, list[str]] = {}
    for name in _NAMES:
        by_code.setdefault(getattr(errors, name).exit_code, []).append(name)
    for code, meaning in _CODES.items():
        names = by_code.pop(code, [])
        shown = "all others" if code == 1 else ", ".join(f"`{name}`" for name in names)
        yield f"| {code} | {meaning} | {shown} |"
    if by_code:
        raise ValueError(f"exit codes without a meaning: {by_code}")
