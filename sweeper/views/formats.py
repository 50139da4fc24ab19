"""Formats of numbers, durations, sizes and parameters for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from sweeper.records.results import Params
from sweeper.spec.space import CategoricalChoice

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "m"), (_MINUTE, "m", 1, "s"))
_KIBI = 1024


def value_text(value: float | None, digits: int = 5) -> str:
    """Write a metric with ``digits`` significant digits; ``-`` where there is none yet."""
    return "-" if value is None else f"{value:.{digits}g}"


def rate_text(rate: float | None) -> str:
    """Write steps per second, with a decimal below 100; ``-`` where it is not known."""
    if rate is None:
        return "-"
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def time_text(seconds: float | None) -> str:
    """Write a duration in its two largest units; ``-`` where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 1 else f"{max(seconds, 0.0) * 1000:.0f}ms"
    whole = round(seconds)
    for unit, name, part, part_name in _UNITS:
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // part:02d}{part_name}"
    return f"{whole}s"


def size_text(count: int) -> str:
    """Write a number of bytes in the largest binary unit that leaves at least 1."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIBI:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIBI
    return f"{amount:.1f} TiB"


def params_text(params: Params) -> str:
    """Write parameters as ``name=value`` words on one line; strings quoted only if they need it."""
    return " ".join(f"{name}={choice_text(value)}" for name, value in params.items())


def metrics_text(metrics: Mapping[str, float], objective: str | None = None) -> str:
    """Write metrics as ``name=value`` words on one line, the objective first."""
    return " ".join(
        f"{name}={value_text(metrics[name])}" for name in objective_first(metrics, objective)
    )


def objective_first(metrics: Mapping[str, float], objective: str | None) -> list[str]:
    """Return the metrics' names in their order, with the objective's moved to the front."""
    return sorted(metrics, key=lambda name: name != objective)


def one_line(text: str) -> str:
    """Return ``text`` with every run of white space, line ends included, as one space."""
    return " ".join(text.split())


def last_line(text: str) -> str:
    """Return the last line that is not blank: of a traceback, the error itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def choice_text(value: CategoricalChoice) -> str:
    """Write one parameter's value; a string quoted only if it needs it."""
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if value.isprintable() and value and " " not in value else json.dumps(value)
