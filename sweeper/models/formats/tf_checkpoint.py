"""TensorFlow checkpoints of model, optimizer and step, for further training without sweeper.

::

    checkpoint = tf.train.Checkpoint(net=model, optimizer=optimizer, step=tf.Variable(0))
    checkpoint.restore(tf.train.latest_checkpoint(path)).assert_consumed()

This needs a new model whose optimizer was built with its trainable variables. Such checkpoints do not
contain the states of seed generators, because Keras does not track them for TensorFlow, so layers such
as dropout draw other numbers than in the trial.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.errors import ExportError, RestoreError
from sweeper.models.formats import Leaving, Written
from sweeper.models.signature import predict
from sweeper.train.state.fixed_parts import FixedParts
from sweeper.train.state.variables import Reach, Variables, load_variables
from sweeper.train.warmstart.source import is_random_state

_MOST_INT32 = (1 << 31) - 1


class TensorFlowCheckpoint:
    """TensorFlow checkpoint format; see `ExportFormat`."""

    name = "tf-checkpoint"
    suffix = ""
    tolerance = 0.0

    def write(self, leaving: Leaving, path: Path) -> Written:
        model = leaving.rebuilt()
        optimizer = model.optimizer
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            msg = (
                f"the model is compiled with {type(optimizer).__name__} as its optimizer, which "
                "TensorFlow's checkpoints cannot hold; use --format keras, weights or safetensors"
            )
            raise ExportError(msg)
        steps = [each.step for each in leaving.training]
        step = _step_variable(max(steps))
        checkpoint = tf.train.Checkpoint(net=model, optimizer=optimizer, step=step)
        manager = tf.train.CheckpointManager(
            checkpoint, str(path), max_to_keep=None, checkpoint_name=leaving.name
        )
        for training in leaving.training:
            load_variables(model, training)
            _load_optimizer(model, training)
            if training is leaving.training[-1]:
                # The requested variables may be those after training instead of the checkpoint's.
                load_variables(model, leaving.loaded)
            step.assign(training.step)
            manager.save(checkpoint_number=training.step)
        return Written(
            {
                "checkpoints": [f"{leaving.name}-{each}" for each in steps],
                "optimizer": type(optimizer).__name__,
                "objects": "net, optimizer, step",
                "left_out": list(filter(is_random_state, leaving.loaded.state["model"])),
            }
        )

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        del written
        model = leaving.rebuilt()
        training = leaving.training[-1]
        _build_optimizer(model, training)
        step = _step_variable(0 if training.step <= _MOST_INT32 else training.step)
        checkpoint = tf.train.Checkpoint(net=model, optimizer=model.optimizer, step=step)
        try:
            newest = tf.train.latest_checkpoint(str(path))
            checkpoint.restore(newest).assert_consumed()
        except (AssertionError, tf.errors.OpError, ValueError) as error:
            summary = str(error).strip().partition("\n")[0]
            msg = f"a new model cannot restore the exported checkpoint: {summary}"
            raise ExportError(msg) from error
        if int(step.numpy()) != training.step:
            msg = f"the exported step is {int(step.numpy())}, expected {training.step}"
            raise ExportError(msg)
        _check_model(model, leaving.loaded)
        _check_optimizer(model, training)
        return predict(model, leaving.batch)


def _step_variable(value: int) -> tf.Variable:
    """Return a step variable with the dtype of ``tf.Variable(0)``, or int64 for a large number."""
    return tf.Variable(value, dtype=tf.int32 if value <= _MOST_INT32 else tf.int64)


def _build_optimizer(model: keras.Model, training: LoadedCheckpoint) -> Variables:
    reach = Reach(model)
    FixedParts(model, reach).build(training.state["parts"])
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return Variables("optimizer", lambda: list(Reach(model).own_optimizer()))


def _load_optimizer(model: keras.Model, training: LoadedCheckpoint) -> None:
    variables = _build_optimizer(model, training)
    saved = training.state["optimizer"]
    found = variables.mismatches(saved, training.tensors)
    if found:
        shown = "\n  ".join(found)
        msg = (
            f"checkpoint {training.path} does not fit the optimizer of the model factory (nothing "
            f"was written):\n  {shown}\nUndo the change of the study's code"
        )
        raise RestoreError(msg)
    variables.restore(saved, training.tensors)


def _check_model(model: keras.Model, loaded: LoadedCheckpoint) -> None:
    """Refuse a checkpoint without all variables, which TensorFlow's assertions do not check."""
    lost = [
        variable.path
        for index, variable in enumerate(model.variables)
        if not is_random_state(variable.path)
        and variable.numpy().tobytes() != loaded.tensors[f"model/{index:05d}"].tobytes()
    ]
    if lost:
        msg = (
            f"a TensorFlow checkpoint does not contain {', '.join(lost)} of this model, because "
            "Keras does not track layers in lists and dictionaries for TensorFlow. Assign each "
            "such layer to an attribute (self.first = …), or use --format keras, weights or "
            "safetensors"
        )
        raise ExportError(msg)


def _check_optimizer(model: keras.Model, training: LoadedCheckpoint) -> None:
    variables = Reach(model).own_optimizer()
    for index, variable in enumerate(variables):
        if variable.numpy().tobytes() != training.tensors[f"optimizer/{index:05d}"].tobytes():
            msg = f"optimizer variable {index} ({variable.path}) differs after it was read back"
            raise ExportError(msg)
