"""What figures say in words: text that Plotly shows as it is, and what belongs to one trial."""

from __future__ import annotations

import html

from sweeper.report.formats import params_text, value_text
from sweeper.results import TrialRecord

_LONGEST = 120


def as_text(text: str) -> str:
    """Return ``text`` so that Plotly shows it literally; it reads tags and entities otherwise."""
    return html.escape(text, quote=False)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return ``text``, cut where it is longer than ``longest`` characters; the cut is shown."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def trial_text(trial: TrialRecord, *lines: str, params: bool = True) -> str:
    """What is shown of a trial under the pointer: its number and state, ``lines``, its parameters."""
    given = [shortened(params_text({name: value})) for name, value in trial.params.items()]
    shown = given[:12] + ([f"and {len(given) - 12} more"] if len(given) > 12 else [])
    if not params:
        shown = []
    said = [f"trial {trial.number} ({trial.state})", *lines, *shown]
    return "<br>".join(as_text(line) for line in said)


def value_of(name: str, value: float | None) -> str:
    """``name`` and its value in one line."""
    return f"{shortened(name)}: {value_text(value, 6)}"
