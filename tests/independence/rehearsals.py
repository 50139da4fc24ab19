"""Rehearsals in this process, over a link that answers by itself: no server, no fork, no database."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpus import forget_modules

from sweeper.definition import StudyDefinition
from sweeper.execution.channel import Assignment, Message, Suggest, Suggested
from sweeper.execution.rehearsal import rehearse
from sweeper.execution.rehearsing import Part, Rehearsal, Rehearsed, Rehearsing
from sweeper.independence.findings import Finding
from sweeper.loading import load_definition
from sweeper.space import Categorical
from sweeper.training.randomness import IMPORT_SEED, seed_everything


class Answering:
    """A trial's link whose worker gives the first choice, and another value to each trial."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.report: dict[str, Any] = {}
        self._number = 0

    def send(self, message: Message) -> None:
        if isinstance(message, Rehearsing):
            self.stages.append(message.stage)
            self._number = message.number
        elif isinstance(message, Rehearsed):
            self.report = message.report

    def ask(self, question: Suggest) -> Suggested:
        distribution = question.distribution
        if isinstance(distribution, Categorical):
            return Suggested(distribution.choices[0])
        return Suggested(distribution.high if self._number else distribution.low)

    def stop_requested(self) -> bool:
        return False


@contextmanager
def loaded(file: Path) -> Iterator[StudyDefinition]:
    """The study in ``file``; what it imported is forgotten afterwards."""
    import keras

    before = set(sys.modules)
    seed_everything(IMPORT_SEED)
    try:
        yield load_definition(str(file))
    finally:
        forget_modules(before, file.parent)
        keras.backend.clear_session(free_memory=False)
        gc.unfreeze()


def rehearsed(file: Path, place: Path, part: Part = "train") -> dict[str, Any]:
    """The report of one rehearsal of the study in ``file``, whose files go below ``place``."""
    link = Answering()
    with loaded(file) as definition:
        settings = definition.settings()
        place.mkdir(parents=True, exist_ok=True)
        assignment = Assignment(
            study=settings.name,
            number=0,
            attempt=1,
            seed=settings.seed,
            epochs=settings.epochs,
            objective=settings.objective,
            deterministic=True,
            threads=1,
            checkpoint_every="epoch",
            files=str(place / "files"),
            log="",
            checkpoints=(str(place / "checkpoints"),),
            rehearsal=Rehearsal(part),
        )
        rehearse(definition, assignment, link)
    return link.report


def findings_of(report: dict[str, Any]) -> list[Finding]:
    return [Finding.from_json(each) for each in report["findings"]]
