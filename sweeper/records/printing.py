"""Values of records as text, for records that print themselves in one line."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST = 40


def value_shown(value: object, longest: int = _LONGEST) -> str:
    """Return a value in one line: six digits of a number, ``-`` for None.

    Args:
        value: A number, a parameter's value or a text.
        longest: How many characters it may have.
    """
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def values_shown(values: Mapping[str, object]) -> str:
    """Return ``name=value`` of each, with a space between them."""
    return " ".join(f"{name}={value_shown(value)}" for name, value in values.items())


def counted(count: int, noun: str) -> str:
    """Return ``1 epoch``, ``2 epochs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
