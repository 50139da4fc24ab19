"""A metric by epoch as one line of characters a trial, all on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from sweeper.report.formats import value_text

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-~=+*#"


class Curves:
    """What rich prints as a metric's course in several trials, side by side.

    Args:
        metric: Its name.
        courses: A label and the metric's values by epoch, for each trial; None where an epoch
            has none.
    """

    def __init__(self, metric: str, courses: Sequence[tuple[str, Sequence[float | None]]]) -> None:
        self._metric = metric
        self._courses = courses

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw a line a trial; nothing where no epoch has a finite value."""
        finite = [v for _, c in self._courses for v in c if v is not None and math.isfinite(v)]
        epochs = max((len(course) for _, course in self._courses), default=0)
        if not finite:
            return
        low, high = min(finite), max(finite)
        labels = max(len(label) for label, _ in self._courses)
        ends = [value_text(course[-1] if course else None, 6) for _, course in self._courses]
        room = max(options.max_width - labels - max(map(len, ends)) - 4, 8)
        bars = _ASCII_BARS if options.ascii_only else _BARS
        yield Text(
            f"{self._metric} by epoch, 1 to {epochs}, from {value_text(low)} to {value_text(high)}:"
        )
        for (label, course), end in zip(self._courses, ends, strict=True):
            line = sparkline(course, (low, high), epochs, min(room, epochs), bars)
            yield Text.assemble(f"{label:>{labels}}  ", (line, "cyan"), f"  {end}")


def sparkline(
    values: Sequence[float | None],
    ends: tuple[float, float],
    epochs: int,
    width: int,
    bars: str = _BARS,
) -> str:
    """Draw ``values`` in at most ``width`` characters, each the last epoch of those that it is for.

    Args:
        values: One an epoch; what is None or not finite leaves a gap.
        ends: What the lowest and the highest bar stand for.
        epochs: Of the longest course that is drawn on this scale.
        width: Characters that so many epochs take.
        bars: From the lowest to the highest.
    """
    low, high = ends
    drawn = []
    for column in range(width):
        epoch = (column + 1) * epochs // width - 1
        if epoch >= len(values):
            break
        value = values[epoch]
        if value is None or not math.isfinite(value):
            drawn.append(" ")
            continue
        height = (value - low) / (high - low) if high > low else 0.0
        drawn.append(bars[min(int(height * len(bars)), len(bars) - 1)])
    return "".join(drawn)
