"""A study's results as Plotly figures; see each module for one of them.

Every function takes what `StudyResults` holds and returns a figure, and reads nothing else: the same
results give the same figure. Plotly is imported when one is drawn.

What a user has written (names of studies, parameters and metrics, values and errors) is text in
them: Plotly reads a subset of HTML, so everything passes through `sweeper.views.figures.drawing`.

No trace needs WebGL. Plotly's WebGL traces compile functions from text, which no strict Content
Security Policy allows, and come out of a printer as a bitmap or not at all. What a thousand trials
need instead is few traces: lines of one kind are one trace with gaps.
"""

from __future__ import annotations

from sweeper.views.figures.attempts import attempts_timeline
from sweeper.views.figures.curves import learning_curves
from sweeper.views.figures.importance import importances
from sweeper.views.figures.parallel import parallel_coordinates

__all__ = ["attempts_timeline", "importances", "learning_curves", "parallel_coordinates"]
