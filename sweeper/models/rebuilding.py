"""Rebuilding of a trial's model with the variables of a checkpoint.

The factory runs with the trial's parameters and seeds, so it draws the same random numbers as in the
trial. A model whose variables are created by the first batch is built as in training, by tracing its
step. Afterwards the random generators of the process are restored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.trial import Trial
from sweeper.errors import RestoreError
from sweeper.guard.factories import build, build_step
from sweeper.guard.guard import Guard
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.train.data import Data, DataSource
from sweeper.train.loop.runners import create_variables_of_training
from sweeper.train.randomness.generators import RecordedState, process_generators
from sweeper.train.randomness.seeds import TrialSeeds
from sweeper.train.sources.opening import open_sources
from sweeper.train.state.variables import load_variables

Ask = Callable[[str, Distribution], CategoricalChoice]

_NUMBERED = re.compile(r"_\d+(?=/|$)")
"""Numeric suffix of names that Keras generates, which differs between processes."""


@dataclass
class ModelBuilder:
    """Builder of one trial's model, any number of times; ``ask`` returns the trial's parameters."""

    definition: StudyDefinition
    number: int
    seeds: TrialSeeds
    directory: Path
    ask: Ask
    notice: Callable[[str], None]
    _data: tuple[Data, DataSource, DataSource | None] | None = field(default=None, init=False)
    _trial: Trial = field(init=False)

    def build(self, loaded: LoadedCheckpoint) -> keras.Model:
        """Return a new model with the checkpoint's variables."""
        with RecordedState(process_generators()):
            self._trial = Trial(
                number=self.number, seed=self.seeds.root, directory=self.directory, ask=self.ask
            )
            made_by = self.definition
            with self._guard() as guard:
                model: keras.Model = build("model", made_by.model, self._trial, self.seeds, guard)
                step = build_step(made_by.step, model, self._trial, self.seeds, guard)
            if len(model.variables) < len(loaded.state["model"]):
                data, train, _ = self._opened()
                create_variables_of_training(model, step, data, train)
                _check_names(model, loaded)
        load_variables(model, loaded)
        return model

    def batch(self) -> Any:
        """Return the inputs of one batch of the validation data, otherwise of the training data, after `build`."""
        with RecordedState(process_generators()):
            _, train, validation = self._opened()
            source = train if validation is None else validation
            batch = next(iter(source.open(0, 0)))
        return keras.utils.unpack_x_y_sample_weight(batch)[0]

    def _guard(self) -> Guard:
        return Guard(warn=self.notice, process="user", factories=self.definition.makers())

    def _opened(self) -> tuple[Data, DataSource, DataSource | None]:
        if self._data is None:
            with self._guard() as guard:
                # The model factory's trial, which that factory may have changed.
                data: Data = build("data", self.definition.data, self._trial, self.seeds, guard)
            sources = open_sources(data, self.seeds.sequence("order"), self.notice)
            self._data = (data, *sources)
        return self._data


def _check_names(model: keras.Model, loaded: LoadedCheckpoint) -> None:
    """Refuse variables in another order, which may have the same shapes."""
    was = [_NUMBERED.sub("", path) for path in loaded.state["model"]]
    now = [_NUMBERED.sub("", str(variable.path)) for variable in model.variables]
    if len(was) == len(now) and was != now:
        at = next(index for index, (a, b) in enumerate(zip(was, now, strict=True)) if a != b)
        msg = (
            f"checkpoint {loaded.path} does not fit the model that the factory makes: its "
            f"variable {at} is {was[at]}, and the model's is {now[at]} (nothing was assigned). "
            "The study's code now makes its layers in another order; undo the change"
        )
        raise RestoreError(msg)
