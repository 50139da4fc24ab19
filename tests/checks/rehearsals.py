"""Rehearsals in this process, over a link that answers by itself: no server, no fork, no database."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corpus import forget_modules

from sweeper.definition.definition import StudyDefinition
from sweeper.definition.loading import load_definition
from sweeper.replay.reports import RehearsalReport
from sweeper.run.protocol.messages import (
    Assignment,
    Message,
    Part,
    Rehearsal,
    Rehearsed,
    Rehearsing,
)
from sweeper.run.trial.rehearsal import rehearse
from sweeper.spec.space import Categorical, CategoricalChoice, Distribution
from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything

PLAIN = """
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
return model
"""
"""For a study's text whose network is not what is tested: one layer, which is traced soonest."""

UNVALIDATED = "return Data(train=(x, y), batch_size=8)"
"""As data of such a study."""


class Answering:
    """A trial's link whose worker gives the first choice, and another value to each trial."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.report: RehearsalReport | None = None
        self._number = 0

    def send(self, message: Message) -> None:
        if isinstance(message, Rehearsing):
            self.stages.append(message.stage)
            self._number = message.number
        elif isinstance(message, Rehearsed):
            self.report = message.report

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        if isinstance(distribution, Categorical):
            return distribution.choices[0]
        return distribution.high if self._number else distribution.low

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


def rehearsed(
    file: Path, directory: Path, part: Part = "train", *, number: int = 0
) -> RehearsalReport:
    """The report of one rehearsal of the study in ``file``, whose files go below ``directory``."""
    link = Answering()
    with loaded(file) as definition:
        settings = definition.settings()
        directory.mkdir(parents=True, exist_ok=True)
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
            files=str(directory / "files"),
            log="",
            checkpoints=(str(directory / "checkpoints"),),
        )
        rehearse(definition, assignment, Rehearsal(part, number), link)
    assert link.report is not None
    return link.report
