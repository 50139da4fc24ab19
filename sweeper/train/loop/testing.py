"""Evaluation of checkpoints on held-out data, with one model that is built and traced once.

A checkpoint's result must not depend on the checkpoints that were evaluated before. So before each
evaluation all variables get the checkpoint's values, metrics are reset, and the random generators and
the position in the data are restored to their initial state.
"""

from collections.abc import Callable
from itertools import chain

import numpy as np

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.train.loop.logs import Reported
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.loop.runners import (
    build_before_tracing,
    create_variables_of_training,
    make_runner,
)
from sweeper.train.loop.validating import Validation
from sweeper.train.randomness.generators import RecordedState, process_generators
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.sources.opening import HeldOut, open_sources
from sweeper.train.state.state import DataPosition
from sweeper.train.state.variables import Reach, Variables, load_variables


class CheckpointTests:
    """A model and the data on which its checkpoints are evaluated."""

    def __init__(
        self,
        plan: TrainingPlan,
        held_out: HeldOut,
        sequence: np.random.SeedSequence,
        notify: Callable[[str], None],
    ) -> None:
        model = plan.model
        step = plan.step
        self._plan = plan
        self._model = model
        self._notify = notify
        self._reported = Reported((), 1, notify)
        self._hidden = HiddenState(sequence)
        self._loose = Variables("reachable", lambda: Reach(model, step).now.loose)
        self._beginning: RecordedState | None = None
        with self._hidden:
            self._runner = make_runner(
                model, held_out.source, plan.trainer.test_step, held_out.limit, continues=False
            )
            if model._distribute_strategy is not None:
                # A trace would create variables of metrics on one replica only.
                build_before_tracing(model, self._runner.example(), step)
            self._runner.trace()
            self._validation = Validation(
                plan, self._runner, lambda: held_out.given, held_out.limit
            )

    def run(self, loaded: LoadedCheckpoint) -> dict[str, float]:
        """Return the checkpoint's metrics by the names that an epoch reports."""
        with self._hidden:
            if self._beginning is None:
                self._complete(loaded)
                self._runner.reader.begin_epoch(0)
                reading = DataPosition(self._runner, None)
                hidden = self._hidden.components
                # The order matters: setting TensorFlow's seed restarts the streams of eager ops.
                components = (reading, self._loose, *process_generators(), *hidden)
                self._beginning = RecordedState(components)
            load_variables(self._model, loaded)
            self._beginning.restore()
            # Variables that exist only in training are ignored: a test step does not use them.
            saved = loaded.state.get(self._loose.name, ())
            self._loose.restore_by_path(saved, loaded.tensors)
            logs = self._validation.run(0)
        numbers = (self._reported.numbers(name, value) for name, value in logs.items())
        return dict(chain.from_iterable(numbers))

    def _complete(self, loaded: LoadedCheckpoint) -> None:
        """Create the variables that only a training step creates."""
        if len(self._model.variables) < len(loaded.state["model"]):
            source, _ = open_sources(self._plan.data, self._plan.order_seed, self._notify)
            create_variables_of_training(self._model, self._plan.step, self._plan.data, source)
