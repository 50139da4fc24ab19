"""`EverySteps` and `AtStep`: callbacks for certain steps of a trial.

A callback with ``on_train_batch_end`` requires one graph call for each step, which may take longer than
the step itself. These callbacks have a next step, and the training loop ends a block of steps there.
Steps are counted over the whole trial. A step's call comes before its checkpoint, so a resumed trial
neither skips nor repeats a call.
"""

from collections.abc import Callable
from typing import Any

import keras

from sweeper.errors import DefinitionError

StepFunction = Callable[[int, dict[str, Any], Any], object]


class StepCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback for certain steps of a trial.

    Args:
        n: A number of steps.
        function: Function of the step's number, its logs and the model.
    """

    def __init__(self, n: int, function: StepFunction) -> None:
        super().__init__()
        name = type(self).__name__
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise DefinitionError(f"{name}({n!r}, …): expected a whole number of steps, at least 1")
        if not callable(function):
            raise DefinitionError(
                f"{name}(…, {function!r}): expected a function of three arguments, "
                "(step, logs, model)"
            )
        self.n = n
        self.function = function

    def next_step(self, step: int) -> int | None:
        """Return the first step after ``step`` with a call, or None."""
        raise NotImplementedError


class EverySteps(StepCallback):
    """Callback that calls ``function(step, logs, model)`` after every ``n`` steps of a trial.

    It is called by sweeper's training, not by ``model.fit``. Between its calls, steps run in blocks of
    one graph call. Setting ``model.stop_training`` ends the epoch there.

    Args:
        n: Steps between two calls: after step n, 2n, 3n, … of the trial, counted from 1 over all
            epochs and attempts.
        function: ``step`` is the number of finished steps; ``logs`` has the step's logs as floats, or
            arrays for metrics that are arrays; ``model`` is the trial's model. With a
            `TrainingStep`, ``model.training_step`` is the step.

    Raises:
        DefinitionError: ``n`` is not a whole number above 0, or ``function`` cannot be called.

    Examples:
        >>> losses = sweeper.EverySteps(100, lambda step, logs, model: print(step, logs["loss"]))
        >>> losses.next_step(250)
        300
    """

    def next_step(self, step: int) -> int:
        """Return the next multiple of ``n``.

        Args:
            step: Number of finished steps.
        """
        return (step // self.n + 1) * self.n


class AtStep(StepCallback):
    """Callback that calls ``function(step, logs, model)`` once, after step ``n`` of a trial.

    Args:
        n: The step, counted from 1 over all epochs and attempts of the trial.
        function: See `EverySteps`.

    Raises:
        DefinitionError: ``n`` is not a whole number above 0, or ``function`` cannot be called.

    Examples:
        >>> def slow_down(step, logs, model):
        ...     model.optimizer.learning_rate = 1e-4
        >>> sweeper.AtStep(1000, slow_down).next_step(0)
        1000
    """

    def next_step(self, step: int) -> int | None:
        """Return ``n``, or None if that step has ended.

        Args:
            step: Number of finished steps.
        """
        return self.n if step < self.n else None
