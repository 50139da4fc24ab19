"""Plotly figures of a study's results.

Every function makes a figure from `StudyResults` alone, so equal results give equal figures. Plotly
is imported when a figure is drawn.

Plotly reads a subset of HTML, so texts of users (names, values, errors) are escaped by
`sweeper.views.figures.drawing`.

No trace needs WebGL: Plotly's WebGL traces compile functions from text, which a strict Content
Security Policy forbids, and print badly. To be fast with a thousand trials, lines of one kind are
one trace with gaps.
"""

from __future__ import annotations

from sweeper.views.figures.attempts import attempts_timeline
from sweeper.views.figures.curves import learning_curves
from sweeper.views.figures.parameters import importances, parallel_coordinates

__all__ = ["attempts_timeline", "importances", "learning_curves", "parallel_coordinates"]
