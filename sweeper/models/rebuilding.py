"""Rebuilding of a trial's model and its optimizers with the variables of a checkpoint.

The factory runs with the trial's parameters and seeds, so it draws the same random numbers as in the
trial. A model whose variables are created by the first batch, and optimizers that a training step of the
user's builds, are built as in training, by tracing the step. Afterwards the random generators of the
process are restored.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.trial import Trial
from sweeper.errors import RestoreError
from sweeper.guard.factories import build, build_step
from sweeper.guard.guard import Guard
from sweeper.train.data import Data, DataSource
from sweeper.train.loop.runners import create_variables_of_training
from sweeper.train.randomness.generators import RecordedState, process_generators
from sweeper.train.randomness.seeds import TrialSeeds
from sweeper.train.sources.opening import open_sources
from sweeper.train.state.variables import Reach, Variables, load_variables
from sweeper.train.step import TrainingStep

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
    _step: TrainingStep | None = field(default=None, init=False)

    def build(self, loaded: LoadedCheckpoint, training: LoadedCheckpoint) -> keras.Model:
        """Return a new model with the variables of ``loaded``, and the optimizers' of the checkpoint ``training``.

        A notice names an optimizer that has other variables now, and so starts with new ones.
        """
        with RecordedState(process_generators()):
            model = self._make()
            if len(model.variables) < len(loaded.state["model"]):
                self._build_by_training(model)
                _check_names(model, loaded)
            elif self._has_own_step(model) and self._misfits(model, training):
                model = self._with_built_optimizers(model)
        load_variables(model, loaded)
        for name, misfits in self.load_optimizers(model, training).items():
            self.notice(
                f"the state of the model's {name} in {training.path} does not fit, so training on begins with new "
                f"variables: {misfits[0]}{f' (and {len(misfits) - 1} more)' if len(misfits) > 1 else ''}"
            )
        return model

    def load_optimizers(
        self, model: keras.Model, training: LoadedCheckpoint
    ) -> dict[str, list[str]]:
        """Assign the optimizers' variables that fit; return the mismatches of the others."""
        misfits = self._misfits(model, training)
        for component in self._optimizers(model):
            if component.name not in misfits:
                component.restore(training.state[component.name], training.tensors)
        return misfits

    def _make(self) -> keras.Model:
        self._trial = Trial(
            number=self.number, seed=self.seeds.root, directory=self.directory, ask=self.ask
        )
        with self._guard() as guard:
            model: keras.Model = build(
                "model", self.definition.model, self._trial, self.seeds, guard
            )
            self._step = build_step(self.definition.step, model, self._trial, self.seeds, guard)
        return model

    def _has_own_step(self, model: keras.Model) -> bool:
        """Return whether code of the user's decides what the optimizers train."""
        return self._step is not None or type(model).train_step is not keras.Model.train_step

    def _build_by_training(self, model: keras.Model) -> None:
        data, train, _ = self._opened()
        create_variables_of_training(model, self._step, data, train)

    def _with_built_optimizers(self, model: keras.Model) -> keras.Model:
        """Return another model, whose optimizers its training step has built; the given one without the data."""
        try:
            self._opened()
        except Exception as error:
            # Code of the user's, of any error; predictions need no data, which may be elsewhere.
            self.notice(f"the optimizers cannot be built without the training data: {error!r}")
            return model
        model = self._make()
        self._build_by_training(model)
        return model

    def _optimizers(self, model: keras.Model) -> list[Variables]:
        """Return the components of the model's optimizer and of the others."""
        reach = Reach(model, self._step)
        return [
            Variables("optimizer", lambda: reach.now.own_optimizer),
            Variables("optimizers", lambda: reach.now.other_optimizers),
        ]

    def _misfits(self, model: keras.Model, training: LoadedCheckpoint) -> dict[str, list[str]]:
        """Build the model's optimizer if it was built in training; return the mismatches by component."""
        optimizer = model.optimizer
        saved = training.state["optimizer"]
        unbuilt = isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built
        if unbuilt and len(saved) > len(optimizer.variables):
            if self._step is None:
                optimizer.build(model.trainable_variables)
            else:
                optimizer.build(self._step.trainable_variables())
        return {
            component.name: misfits
            for component in self._optimizers(model)
            if (misfits := component.mismatches(training.state[component.name], training.tensors))
        }

    def batch(self) -> Any:
        """Return the inputs of one batch of the validation data, otherwise of the training data, after `build`."""
        with RecordedState(process_generators()):
            _, train, validation = self._opened()
            source = train if validation is None else validation
            batch = next(iter(source.open(0, 0)))
        return keras.utils.unpack_x_y_sample_weight(batch)[0]

    def _guard(self) -> Guard:
        return Guard(notify=self.notice, process="user", factories=self.definition.factories())

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
    stored_names = [_NUMBERED.sub("", path) for path in loaded.state["model"]]
    names = [_NUMBERED.sub("", str(variable.path)) for variable in model.variables]
    if len(stored_names) == len(names) and stored_names != names:
        position = next(
            index for index, (a, b) in enumerate(zip(stored_names, names, strict=True)) if a != b
        )
        raise RestoreError(
            f"checkpoint {loaded.path} does not fit the model that the factory makes: its "
            f"variable {position} is {stored_names[position]}, and the model's is "
            f"{names[position]} (nothing was assigned). "
            "The study's code now makes its layers in another order; undo the change"
        )
