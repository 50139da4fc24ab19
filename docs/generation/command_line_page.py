"""The page of the command line, made from the verbs themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

from sweeper.cli.main import DATABASE_VERBS, VERBS, app

_HIDDEN = ("--help", "--debug")

_HEAD = """# The command line

<!-- Made from `sweeper/cli/`. -->

Data go to standard output, progress and logs to standard error. `--storage` and `--runs-dir` may
stand in the environment or in a file ([settings](settings.md)); what `--json` prints is on a page
[of its own](json.md), and so are [exit codes](errors-and-exit-codes.md). Every verb takes `--debug`,
which prints the traceback of an unexpected error, and `--help`.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *_sections()])


def verbs() -> dict[str, Any]:
    """Every verb's command by what is typed, in the order of the help."""
    root: Any = typer.main.get_command(app)
    database = root.commands["db"]
    found = {}
    for group in VERBS.values():
        for verb in group:
            found[verb.__name__] = root.commands[verb.__name__]
    for verb in DATABASE_VERBS:
        found[f"db {verb.__name__}"] = database.commands[verb.__name__]
    return found


def _sections() -> Iterator[str]:
    titles = {verb.__name__: title for title, group in VERBS.items() for verb in group}
    last = ""
    for name, command in verbs().items():
        title = titles.get(name, "Database")
        if title != last:
            yield f"## {title}\n"
            last = title
        yield f"### sweeper {name}\n"
        yield f"```text\n{_usage(name, command)}\n```\n"
        yield inspect.cleandoc(command.help or "") + "\n"
        rows = list(_rows(command))
        if rows:
            yield "\n".join(["| Argument or option | Meaning |", "|---|---|", *rows, ""])


def _usage(name: str, command: Any) -> str:
    words = ["sweeper", name]
    for each in command.params:
        if each.param_type_name == "argument":
            shown = each.metavar or each.human_readable_name.upper()
            if shown.startswith("[") and shown.endswith("]"):
                shown = shown[1:-1]
            shown += "…" if each.nargs == -1 else ""
            words.append(shown if each.required else f"[{shown}]")
    return " ".join([*words, "[OPTIONS]"])


def _rows(command: Any) -> Iterator[str]:
    for each in command.params:
        names = list(each.opts)
        if each.param_type_name == "argument":
            names = [each.metavar or each.human_readable_name.upper()]
        if set(names) & set(_HIDDEN) or getattr(each, "hidden", False):
            continue
        value = each.metavar if each.param_type_name == "option" and each.metavar else ""
        if not value and each.param_type_name == "option" and not each.is_flag:
            value = _value_of(each)
        shown = ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in names)
        text = " ".join((each.help or "").split())
        default = _default(each)
        text = f"{text}{default}".replace("|", "\\|")
        yield f"| {shown} | {text} |"


def _value_of(option: Any) -> str:
    choices = getattr(option.type, "choices", None)
    if choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in choices)
    return str(option.type.name).upper()


def _default(each: Any) -> str:
    shown = each.default
    if callable(shown) or shown is None or shown is False or "default" in (each.help or ""):
        return ""
    text = str(getattr(shown, "value", shown))
    return f" (default: {text})" if text and each.param_type_name == "option" else ""
