"""A training before its first step, when its runners are traced.

Then every variable exists that a graph creates, and the callbacks know the model. So the state is complete,
which `sweeper.train.state.state` captures and restores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import keras

from sweeper.errors import FactoryError
from sweeper.train.loop.building import build_before_tracing
from sweeper.train.loop.plan import TrainingPlan, roots_of
from sweeper.train.loop.runners import Blocks, make_runner
from sweeper.train.replicas import check_model
from sweeper.train.sources.opening import open_sources
from sweeper.train.sources.runner import Runner
from sweeper.train.state.callbacks import (
    FinalAverages,
    listens_to_batches,
    summaries_to,
    writing_by_batch,
)
from sweeper.train.userstate import Roots


@dataclass(frozen=True)
class PreparedTraining:
    """The traced runners of a training, and its callbacks.

    Attributes:
        train: Runner of the training steps.
        test: Runner of the validation steps; None without validation data.
        roots: Roots of the walk over the user's objects.
        callbacks: The user's callbacks and Keras's history.
        blocks: Runner of blocks of steps, with `StepCallback`s in between.
        averages: What ``SwapEMAWeights`` does after the last epoch.
        listening: Whether a callback is called at training batches.
        listening_to_tests: Whether one is called at validation batches.
        trained: The weights that the step trains: callbacks may change ``trainable`` later.
    """

    train: Runner
    test: Runner | None
    roots: Roots
    callbacks: keras.callbacks.CallbackList
    blocks: Blocks
    averages: FinalAverages
    listening: bool
    listening_to_tests: bool
    trained: list[Any]


def prepare_training(plan: TrainingPlan, notice: Callable[[str], None]) -> PreparedTraining:
    """Check the model, open the data, trace the runners, and give the callbacks the model.

    Raises:
        FactoryError, DataError, UncapturableError: The plan cannot be trained, or not exactly.
    """
    model, data = plan.model, plan.data
    if not model.compiled:
        msg = (
            f"the model factory returned {type(model).__name__} {model.name!r}, which is not "
            "compiled; call model.compile(optimizer=…, loss=…) before returning it"
        )
        raise FactoryError(msg)
    remark = check_model(model, plan.step)
    if remark is not None:
        notice(remark)
    source, validation = open_sources(data, plan.order_seed, notice)
    steps = plan.steps_of
    train = make_runner(model, source, steps.train_step, data.steps_per_epoch)
    build_before_tracing(model, train.example(), plan.step)
    runners: dict[Literal["train", "validation"], Runner] = {"train": train}
    if validation is not None:
        runners["validation"] = make_runner(
            model, validation, steps.test_step, data.validation_steps, continues=False
        )
    for runner in runners.values():
        runner.trace()
    callbacks = keras.callbacks.CallbackList(
        list(plan.callbacks),
        add_history=True,
        model=model,
        verbose=0,
        epochs=plan.epochs,
        steps=train.reader.steps,
    )
    # A callback in another thread could still be running when a snapshot is taken.
    callbacks._async_train = callbacks._async_test = False
    board = writing_by_batch(callbacks.callbacks)
    if board is not None and not model.run_eagerly:
        # Traced again, because the callback that writes the model's summaries has the model now.
        for use, runner in runners.items():
            with summaries_to(board, use):
                runner.trace()
    return PreparedTraining(
        train=train,
        test=runners.get("validation"),
        roots=roots_of(plan, {"train": source, "validation": validation}),
        callbacks=callbacks,
        blocks=Blocks(model, callbacks.callbacks),
        averages=FinalAverages(plan.callbacks),
        listening=listens_to_batches(callbacks.callbacks, test=False),
        listening_to_tests=listens_to_batches(callbacks.callbacks, test=True),
        trained=list(model.trainable_weights),
    )
