"""A training's beginning from its warm start: matched once, assigned before any callback sees it."""

from __future__ import annotations

from collections.abc import Callable

import keras

from sweeper.training.warmstart.matching import WarmValues, match_warm_start
from sweeper.training.warmstart.options import WarmStart
from sweeper.training.warmstart.report import WarmStartReport


class WarmBeginning:
    """What one training begins from.

    Args:
        options: Of the training; None where it begins with what its factory made.
        model: Its model, with every variable that training has by the time of `match`.
        notice: Called with what fits and what does not.
    """

    def __init__(
        self, options: WarmStart | None, model: keras.Model, notice: Callable[[str], None]
    ) -> None:
        self._options = options
        self._model = model
        self._notice = notice
        self._values: WarmValues | None = None

    def match(self) -> WarmStartReport | None:
        """Find the values, and assign nothing yet; None where there is nothing to begin from.

        Raises:
            WarmStartError: The file is not there, is of another kind, or does not fit.
            CheckpointError: It cannot be read, or has changed.
        """
        if self._options is None:
            return None
        if self._values is None:
            self._values = match_warm_start(self._options, self._model)
            self._notice(self._values.report.summary())
        return self._values.report

    def apply(self) -> None:
        """Copy the values into the model's variables; errors as `match` has them."""
        self.match()
        if self._values is not None:
            self._values.assign()
            self._values = None
