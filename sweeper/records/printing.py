"""Values of records as text in one line, and as JSON."""

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

_LONGEST = 40


def value_shown(value: object, longest: int = _LONGEST) -> str:
    """Return a value in one line, cut to ``longest`` characters: six digits, ``-`` for None."""
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def values_shown(values: Mapping[str, object]) -> str:
    """Return ``name=value`` for each, separated by spaces."""
    return " ".join(f"{name}={value_shown(value)}" for name, value in values.items())


def parameter_shown(value: object) -> str:
    """Return a parameter's value in one line; unlike that of a metric, None is a value."""
    return "None" if value is None else value_shown(value)


def parameters_shown(params: Mapping[str, object]) -> str:
    """Return ``name=value`` for each parameter, separated by spaces."""
    return " ".join(f"{name}={parameter_shown(value)}" for name, value in params.items())


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 epoch``, ``2 epochs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def trials_named(numbers: Iterable[object], most: int | None = None) -> str:
    """Return the numbers of trials with their noun, at most so many: ``trial 3``, ``trials 3, 5, …``."""
    names = list(map(str, numbers))
    listed = names if most is None or len(names) <= most else [*names[:most], "…"]
    return f"trial{'s' * (len(names) > 1)} {', '.join(listed)}"


def json_fields(record: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a record as JSON, by name; without names, all fields of the dataclass."""
    attributes = names or [field.name for field in fields(record)]
    return {name: _json(getattr(record, name)) for name in attributes}


class PrintedRecord:
    """Base class of records that a prompt and a notebook's cell show by their text of several lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_text(str(self), "white-space:pre-wrap")


def html_text(text: str, style: str = "overflow-x:auto;white-space:pre") -> str:
    """Return text as HTML that keeps its lines, with the text escaped; by default it scrolls sideways."""
    return f'<pre style="{style}">{html.escape(text)}</pre>'


class JsonRecord:
    """Base class of records whose JSON has all of their fields, by name."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as ``--json`` prints it."""
        return json_fields(self)


def finite_json(value: Any) -> Any:
    """Return ``value`` with every float that is not finite replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value


def _json(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value
