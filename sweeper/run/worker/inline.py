"""Inline trials: the same trial code in the worker's process, for a debugger.

They lack the isolation of a process: a crash ends the whole run, and changes in libraries remain. Each
trial starts with a cleared Keras session and its own seeds, and what it changes in objects that the study's
code reaches is undone at its end.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, cast

from sweeper.definition.definition import StudyDefinition
from sweeper.errors import ExecutionError
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import Link
from sweeper.run.trial.link import failure_of
from sweeper.support.tensorflow_start import configure_tensorflow
from sweeper.train.randomness.fresh_entropy import system_entropy

if TYPE_CHECKING:
    from sweeper.run.worker.slot import AttemptSupervisor


class InlineTrials:
    """Trials of one study in this process; their messages go to the attempt's supervisor."""

    def __init__(self, definition: StudyDefinition) -> None:
        self._definition = definition

    def __call__(self, assignment: messages.Assignment, supervisor: AttemptSupervisor) -> None:
        import keras

        from sweeper.guard.guard import name_of
        from sweeper.run.trial.run import run_trial
        from sweeper.train.userstate.walk import changes_undone

        keras.backend.clear_session()
        # The earlier trial's model is in reference cycles, and its memory is needed now.
        gc.collect()
        link = _InlineLink(supervisor)
        settings = assignment.settings
        try:
            configure_tensorflow(threads=settings.threads, deterministic=settings.deterministic)
        except RuntimeError as error:
            raise ExecutionError(
                f"inline trials need {settings.threads} TensorFlow threads, and this process "
                f"has already run TensorFlow with another number ({error}); start a new Python, "
                "or use isolation='fork' or 'spawn'"
            ) from error
        factories = [
            (name_of(factory), factory)
            for factory in self._definition.factories()
            if factory is not None
        ]
        try:
            with changes_undone(factories, link.warn):
                run_trial(self._definition, assignment, link, "inline")
        except (Exception, SystemExit, _WorkerError) as error:
            link.check()
            link.send(failure_of(error, asked=link.asked))
        link.check()


class _WorkerError(BaseException):
    """Wrapper of the worker's errors that is no `Exception`, so that the trial's code does not catch it."""


class _InlineLink(Link):
    """Link of a trial to a worker in the same process."""

    def __init__(self, supervisor: AttemptSupervisor) -> None:
        self._supervisor = supervisor
        self.asked = False
        self._raised: BaseException | None = None

    def check(self) -> None:
        """Raise the error that the worker raised while the trial ran, if there is one."""
        if self._raised is not None:
            raise self._raised

    def _handle(self, message: messages.Message) -> messages.Message | None:
        self.asked = self.asked or isinstance(message, messages.Suggest | messages.Started)
        if self._raised is not None:
            raise _WorkerError from self._raised
        try:
            with system_entropy():
                return self._supervisor.handle(message)
        except BaseException as error:
            self._raised = error
            raise _WorkerError from error

    def send(self, message: messages.Message) -> None:
        self._handle(message)

    def ask(self, question: messages.Question) -> messages.Answered:
        return cast("messages.Answered", self._handle(question))

    def stop_requested(self) -> bool:
        try:
            return self._supervisor.stop_requested(inside=True)
        except BaseException as error:
            self._raised = self._raised or error
            raise _WorkerError from error
