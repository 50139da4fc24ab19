"""The code that the user wrote in a study, with the lines where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweeper.guard.owned import name_of
from sweeper.inspection.measured import measured_names
from sweeper.replay.lines import line_of
from sweeper.replay.reports import Authored, StudyAuthors

if TYPE_CHECKING:
    from sweeper.definition.definition import StudyDefinition
    from sweeper.train.loop.plan import TrainingPlan


def authors_of(definition: StudyDefinition, plan: TrainingPlan) -> StudyAuthors:
    """Return the user's factories and the callbacks of a trial."""
    return StudyAuthors(
        model=_factory(definition.model),
        data=_factory(definition.data),
        callbacks=tuple(_callback(type(callback)) for callback in plan.callbacks),
    )


def _factory(factory: Any) -> Authored:
    return Authored(name_of(factory), line_of(factory))


def _callback(kind: type) -> Authored:
    return Authored(kind.__qualname__, line_of(kind), measured_names(kind))
