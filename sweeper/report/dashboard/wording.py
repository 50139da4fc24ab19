"""What every one of our pages has: how moments are written, and what a browser may load."""

from __future__ import annotations

from datetime import datetime

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # plotly.js makes pictures of its own drawings.
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: this server's own files, and nothing else."""


def moment_text(moment: datetime | None) -> str:
    """Write a moment in UTC to the second, as it is read by people."""
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def clock_text(moment: datetime) -> str:
    """Write a moment for ``<time datetime=…>``."""
    return moment.isoformat()
