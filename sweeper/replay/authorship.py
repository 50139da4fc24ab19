"""The code that the user wrote in a study, and on which of its lines something stands: a factory, a class, an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras

from sweeper.errors import (
    DataError,
    IndependenceError,
    ObjectiveError,
    SweeperError,
    UncapturableError,
)
from sweeper.guard.owned import name_of
from sweeper.inspection.measured import measured_names
from sweeper.replay.lines import line_of, line_of_argument, line_of_error
from sweeper.replay.reports import Authored, Finding, Line, StudyAuthors
from sweeper.replay.tracing import HOOKS
from sweeper.support.installation import missing_package
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.state.variables import walk

_LONG = 600
"""Length of a message above which its middle is left out."""


@dataclass
class StudyCode:
    """The code of one study.

    Args:
        name: The study's.
        model, data, callbacks, step: Its factories.
    """

    name: str
    model: Callable[..., Any]
    data: Callable[..., Any]
    callbacks: Callable[..., Any] | None
    step: Callable[..., Any] | None = None
    _callbacks: list[Any] = field(default_factory=list)
    _parts: list[type] = field(default_factory=list)

    def learn(self, plan: TrainingPlan) -> None:
        """Record the objects that the factories made: callbacks, and the user's layers."""
        self._callbacks = list(plan.callbacks)
        kinds = {type(found.value) for found in walk(plan.model, plan.step)}
        kinds |= {type(plan.step)}
        self._parts = sorted(
            (kind for kind in kinds if line_of(kind) is not None),
            key=lambda kind: kind.__qualname__,
        )

    def finding_of(self, error: BaseException, stage: str, check: str) -> Finding:
        """Return ``error`` as a finding, at the user's innermost line or at the object that it names."""
        message = str(error)
        line = line_of_error(error)
        if isinstance(error, IndependenceError):
            sharing: Any = next(iter(error.sharings), None)
            path = getattr(sharing, "first_path", "model")
            root = path.removesuffix(" of this trial").rpartition(" of ")[2]
            check, line = "independence", self._line_of_factory(root)
        elif isinstance(error, UncapturableError):
            check, line = "capture", line or self.line_of_message(message)
        elif isinstance(error, ObjectiveError):
            check, line = "objective", self._line_of_objective()
        elif isinstance(error, DataError):
            check, line = "data", line or line_of(self.data)
        elif isinstance(error, SweeperError):
            line = line or self.line_of_message(message)
        else:
            kind = "SystemExit" if isinstance(error, SystemExit) else type(error).__name__
            message = f"{stage} raised {kind}: {_shortened(message)}"
            missing = missing_package(error)
            if missing is not None:
                check, message = "installation", f"{message}; {missing}"
        return Finding("error", check, message, line or line_of(self.model))

    def line_of_message(self, message: str) -> Line | None:
        """Return the line of the callback, the data or the factory that one of sweeper's messages names."""
        for callback in self._callbacks:
            kind = type(callback)
            if message.startswith(f"callback {kind.__qualname__}") and line_of(kind):
                return line_of(kind)
        for what in ("callbacks", "step", "data"):
            if message.startswith(f"the {what} factory"):
                return self._line_of_factory(what)
        return self._line_of_factory(message)

    def authors(self) -> StudyAuthors:
        """Return everything that was recorded."""
        parts = ", ".join(kind.__qualname__ for kind in self._parts)
        return StudyAuthors(
            model=Authored(name_of(self.model), line_of(self.model)),
            data=Authored(name_of(self.data), line_of(self.data)),
            step=Authored(parts, line_of(self._parts[0]) if self._parts else None),
            callbacks=tuple(map(self._callback, self._callbacks)),
        )

    def _callback(self, callback: keras.callbacks.Callback) -> Authored:
        kind = type(callback)
        lines = ((hook, line_of(getattr(callback, hook))) for hook in HOOKS)
        hooks = {hook: line for hook, line in lines if line is not None}
        line = line_of(kind) or line_of(self.callbacks)
        return Authored(kind.__qualname__, line, hooks, measured_names(kind))

    def _line_of_factory(self, path: str) -> Line | None:
        """Return the line of the factory that made the object at ``path``."""
        if path.startswith("callback"):
            return line_of(self.callbacks) or line_of(self.model)
        if path.startswith(("step", "the training step")) and self.step is not None:
            return line_of(self.step)
        return line_of(self.data if path.startswith(("Data(", "data")) else self.model)

    def _line_of_objective(self) -> Line | None:
        for line in (line_of(self.model), line_of(self.data)):
            found = None if line is None else line_of_argument(line.file, self.name, "objective")
            if found is not None:
                return found
        return None


def _shortened(message: str) -> str:
    """Return the first and last lines of a long message, because TensorFlow's contain tracebacks."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(message) <= _LONG or len(lines) < 3:
        return message
    return f"{lines[0]} … {lines[-2]} {lines[-1]}"
