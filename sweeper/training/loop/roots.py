"""Where the walk over the user's objects begins, in a training."""

from __future__ import annotations

from collections.abc import Mapping

import keras

from sweeper.training.data import DataSource
from sweeper.training.encoding import tells_its_state
from sweeper.training.loop.plan import TrainingPlan
from sweeper.training.sources.arrays import is_arrays
from sweeper.training.userstate import Roots

_OF_KERAS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)


def roots_of(plan: TrainingPlan, sources: Mapping[str, DataSource | None]) -> Roots:
    """The roots of ``plan``, whose data are read by ``sources``, by use."""
    data = plan.data
    given = {"train": data.train, "validation": data.validation}
    read = {use: thing for use, thing in given.items() if not is_arrays(thing)}
    callbacks = [c for c in plan.callbacks if tells_its_state(c)]
    return Roots(
        model=plan.model,
        callbacks=plan.callbacks,
        step=plan.step,
        data=read,
        read_ahead=frozenset(u for u in read if getattr(sources[u], "reads_ahead", False)),
        written={u: getattr(sources[u], "written", {}) for u in read},
        # What is tracked by name is captured by name; layers and the like have attributes as well.
        exempt=(
            *callbacks,
            *(thing for thing in read.values() if tells_its_state(thing)),
            *(thing for thing in plan.tracked.values() if not isinstance(thing, _OF_KERAS)),
        ),
        output=plan.output_only,
        directory=plan.directory,
    )
