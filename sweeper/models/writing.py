"""Export of a model by Keras's and TensorFlow's own writers, under a temporary name that is then renamed.

So the requested path either has a complete model or does not exist. Its description is renamed after the
model, because a description without a model would be wrong.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from sweeper.checkpoint.format import LoadedCheckpoint, library_versions
from sweeper.checkpoint.tensors import TensorFile
from sweeper.errors import ExportError, RestoreError
from sweeper.models.exported import check_target, description_path
from sweeper.models.rebuilding import ModelBuilder
from sweeper.train.state.fixed_parts import FixedParts
from sweeper.train.state.variables import Reach, Variables, load_variables
from sweeper.train.warmstart.source import is_random_state

_MOST_INT32 = (1 << 31) - 1


@dataclass(frozen=True)
class ExportJob:
    """Model to write, format (``form``) and path.

    Attributes:
        loaded: The model's variables.
        training: One or more checkpoints with the optimizer's variables, oldest first. The last one
            belongs to ``loaded``.
        card: Known content of the description.
        force: Whether an existing file is replaced.
        name: Name of TensorFlow's checkpoints.
    """

    form: str
    path: Path
    loaded: LoadedCheckpoint
    training: Sequence[LoadedCheckpoint]
    card: dict[str, Any]
    force: bool = False
    name: str = "ckpt"


def export_model(builder: ModelBuilder, job: ExportJob) -> dict[str, Any]:
    """Build the model, write it and its description, and return the description.

    Raises:
        UsageError: The path exists, or its directory does not.
        ExportError: The format does not support the model, or the disk is full. Nothing is left at the
            path.
        RestoreError, FactoryError, DataError: The model cannot be built.
    """
    check_target(job.path, force=job.force)
    model = builder.build(job.loaded)
    with _beside(job.path) as directory:
        written = directory / job.path.name
        card = {
            **job.card,
            "format": job.form,
            "step": job.loaded.step,
            "epoch": job.loaded.epoch,
            "metrics": dict(job.loaded.metrics),
            "digest": job.training[-1].digest if job.training else job.loaded.digest,
            "versions": dict(library_versions()),
            "details": _write(builder, model, job, written),
        }
        description = directory / description_path(job.path).name
        text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
        description.write_text(text, encoding="utf-8")
        for path in (written, *written.rglob("*"), description):
            _fsync(path)
        if job.path.is_dir() and not job.path.is_symlink():
            job.path.rename(directory / "replaced")
        written.replace(job.path)
        description.replace(description_path(job.path))
        _fsync(job.path.parent)
    return card


def _write(builder: ModelBuilder, model: keras.Model, job: ExportJob, path: Path) -> dict[str, Any]:
    """Write the model to ``path``, and return the format's details for the description."""
    match job.form:
        case "keras":
            return _write_keras(model, path)
        case "weights":
            model.save_weights(path)
            return {"variables": len(model.weights)}
        case "safetensors":
            return _write_safetensors(job.loaded, path)
        case "tf-checkpoint":
            return _write_checkpoints(model, job, path)
    from sweeper.models import served

    write = served.write_frozen_graph if job.form == "frozen" else served.write_saved_model
    return write(model, builder.batch(), path)


def _write_keras(model: keras.Model, path: Path) -> dict[str, Any]:
    """Write a ``.keras`` file, and return the classes that its reader has to import or register."""
    try:
        config = keras.saving.serialize_keras_object(model)
        model.save(path)
    except (NotImplementedError, TypeError, ValueError) as error:
        msg = (
            f"the model's configuration cannot be written to a .keras file: {error}; give its "
            "classes a get_config(), or use --format savedmodel, which needs none"
        )
        raise ExportError(msg) from error
    return {"needs": sorted(set(_own_classes(config)))}


def _own_classes(config: Any) -> Iterator[str]:
    """Yield the classes and functions in a config that do not belong to Keras."""
    if isinstance(config, dict):
        module, name, named = (config.get(k) for k in ("module", "class_name", "registered_name"))
        if isinstance(name, str) and "config" in config:
            if isinstance(module, str) and not module.startswith(("keras", "builtins")):
                yield f"{module}.{config['config'] if name == 'function' else name}"
            elif module is None and named:
                yield str(named)
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            yield from _own_classes(value)


def _write_safetensors(loaded: LoadedCheckpoint, path: Path) -> dict[str, Any]:
    """Write the variables by their paths in the trial's process."""
    names: dict[str, int] = {}
    tensors = {}
    for index, name in enumerate(loaded.state["model"]):
        names[name] = names.get(name, 0) + 1
        key = name if names[name] == 1 else f"{name}:{names[name]}"
        tensors[key] = loaded.tensors[f"model/{index:05d}"]
    with path.open("xb") as file:
        TensorFile(tensors).write(file.write)
    return {"variables": len(tensors)}


def _write_checkpoints(model: keras.Model, job: ExportJob, path: Path) -> dict[str, Any]:
    """Write TensorFlow checkpoints of model, optimizer and step, for further training without sweeper.

    They do not contain the states of seed generators, because Keras does not track them for
    TensorFlow, so layers such as dropout draw other numbers than in the trial.
    """
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        msg = (
            f"the model is compiled with {type(optimizer).__name__} as its optimizer, which "
            "TensorFlow's checkpoints cannot hold; use --format keras, weights or safetensors"
        )
        raise ExportError(msg)
    steps = [each.step for each in job.training]
    large = max(steps) > _MOST_INT32
    step = tf.Variable(0, dtype=tf.int64 if large else tf.int32)
    checkpoint = tf.train.Checkpoint(net=model, optimizer=optimizer, step=step)
    manager = tf.train.CheckpointManager(
        checkpoint, str(path), max_to_keep=None, checkpoint_name=job.name
    )
    for training in job.training:
        load_variables(model, training)
        _load_optimizer(model, training)
        if training is job.training[-1]:
            # The requested variables may be those after training instead of the checkpoint's.
            load_variables(model, job.loaded)
            _refuse_untracked(model, checkpoint)
        step.assign(training.step)
        manager.save(checkpoint_number=training.step)
    return {
        "checkpoints": [f"{job.name}-{each}" for each in steps],
        "optimizer": type(optimizer).__name__,
        "objects": "net, optimizer, step",
        "left_out": list(filter(is_random_state, job.loaded.state["model"])),
    }


def _load_optimizer(model: keras.Model, training: LoadedCheckpoint) -> None:
    reach = Reach(model)
    FixedParts(model, reach).build(training.state["parts"])
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = Variables("optimizer", lambda: list(Reach(model).now.own_optimizer))
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


def _refuse_untracked(model: keras.Model, checkpoint: tf.train.Checkpoint) -> None:
    """Refuse a model with variables that TensorFlow does not find, and would leave out silently."""
    tracked = {id(each) for each in tf.train.TrackableView(checkpoint).descendants()}
    lost = [
        variable.path
        for variable in model.variables
        if not is_random_state(variable.path) and not {id(variable), id(variable.value)} & tracked
    ]
    if lost:
        msg = (
            f"a TensorFlow checkpoint does not contain {', '.join(lost)} of this model, because "
            "Keras does not track layers in lists and dictionaries for TensorFlow. Assign each "
            "such layer to an attribute (self.first = …), or use --format keras, weights or "
            "safetensors"
        )
        raise ExportError(msg)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Context manager for a temporary directory on the same disk."""
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True
        ) as directory:
            yield Path(directory)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        msg = (
            f"the model cannot be written to {path}: {reason}; nothing was left there. Free some "
            "space, or name another path"
        )
        raise ExportError(msg) from error


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
