"""Export of a model by Keras's and TensorFlow's own writers, under a temporary name that is then renamed.

So the requested path either has a complete model or does not exist. Its description is renamed after the
model, because a description without a model would be wrong.

Readers of a SavedModel and of a frozen graph need no code of the study. A SavedModel, for TensorFlow Serving,
has a signature with named inputs. A frozen graph (``.pb``) is one GraphDef whose variables are constants. A
model with lookup tables or other resources cannot be frozen.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

# TensorFlow 2 has no public function that makes a frozen graph.
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from sweeper.checkpoint.format import LoadedCheckpoint, library_versions
from sweeper.checkpoint.operations import fsync_path
from sweeper.checkpoint.tensors import TensorFile
from sweeper.errors import ExportError
from sweeper.models.exported import check_target, description_path
from sweeper.models.rebuilding import ModelBuilder
from sweeper.records.model_source import ExportOptions
from sweeper.train.state.variables import load_variables, refuse_misfits
from sweeper.train.warmstart.initial import unique_names
from sweeper.train.warmstart.source import is_random_state


@dataclass(frozen=True)
class ExportJob:
    """Model to write, with the variables in ``loaded``, and the known content of its description (``card``).

    Of ``training``, one or more checkpoints with the optimizers' variables, the last one belongs to ``loaded``.
    """

    options: ExportOptions
    loaded: LoadedCheckpoint
    training: Sequence[LoadedCheckpoint]
    card: dict[str, Any]


def export_model(builder: ModelBuilder, job: ExportJob) -> dict[str, Any]:
    """Build the model, write it and its description, and return the description; after an error nothing is left."""
    path = job.options.path
    check_target(path, force=job.options.force)
    model = builder.build(job.loaded, job.training[-1])
    with _beside(path) as directory:
        target = directory / path.name
        card = {
            **job.card,
            "format": job.options.format,
            "step": job.loaded.step,
            "epoch": job.loaded.epoch,
            "metrics": dict(job.loaded.metrics),
            "digest": job.training[-1].digest,
            "versions": dict(library_versions()),
            "details": _write(builder, model, job, target),
        }
        description = directory / description_path(path).name
        text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
        description.write_text(text, encoding="utf-8")
        for written in (target, *target.rglob("*"), description):
            fsync_path(written)
        # A renaming replaces a file, but not a directory that has entries.
        if path.is_dir() and not path.is_symlink():
            path.rename(directory / "replaced")
        target.replace(path)
        description.replace(description_path(path))
        fsync_path(path.parent)
    return card


def _write(builder: ModelBuilder, model: keras.Model, job: ExportJob, path: Path) -> dict[str, Any]:
    """Write the model to ``path``, and return the format's details for the description."""
    match job.options.format:
        case "keras":
            return _write_keras(model, path)
        case "weights":
            model.save_weights(path)
            return {"variables": len(model.weights)}
        case "safetensors":
            return _write_safetensors(job.loaded, path)
        case "tf-checkpoint":
            return _write_checkpoints(builder, model, job, path)
    write = _write_frozen_graph if job.options.format == "frozen" else _write_saved_model
    return write(model, builder.batch(), path)


def _write_keras(model: keras.Model, path: Path) -> dict[str, Any]:
    """Write a ``.keras`` file, and return the classes that its reader has to import or register."""
    try:
        config = keras.saving.serialize_keras_object(model)
        model.save(path)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ExportError(
            f"the model's configuration cannot be written to a .keras file: {error}; give its "
            "classes a get_config(), or use --format savedmodel, which needs none"
        ) from error
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
    names = unique_names(loaded.state["model"], ":")
    tensors = {name: loaded.tensors[f"model/{index:05d}"] for index, name in enumerate(names)}
    with path.open("xb") as file:
        TensorFile(tensors).write(file.write)
    return {"variables": len(tensors)}


def _write_checkpoints(
    builder: ModelBuilder, model: keras.Model, job: ExportJob, path: Path
) -> dict[str, Any]:
    """Write TensorFlow checkpoints of model, optimizer and step, for further training without sweeper.

    They do not contain the states of seed generators, because Keras does not track them for
    TensorFlow, so layers such as dropout draw other numbers than in the trial.
    """
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ExportError(
            f"the model is compiled with {type(optimizer).__name__} as its optimizer, which "
            "TensorFlow's checkpoints cannot hold; use --format keras, weights or safetensors"
        )
    steps = [training.step for training in job.training]
    large = max(steps) > tf.int32.max
    step = tf.Variable(0, dtype=tf.int64 if large else tf.int32)
    checkpoint = tf.train.Checkpoint(net=model, optimizer=optimizer, step=step)
    manager = tf.train.CheckpointManager(
        checkpoint, str(path), max_to_keep=None, checkpoint_name=job.options.name
    )
    for training in job.training:
        load_variables(model, training)
        refuse_misfits(
            training,
            builder.load_optimizers(model, training).get("optimizer", ()),
            "the optimizer of the model factory (nothing was written)",
            "export with the code that wrote it",
        )
        if training is job.training[-1]:
            # The requested variables may be those after training instead of the checkpoint's.
            load_variables(model, job.loaded)
            _refuse_untracked(model, checkpoint)
        step.assign(training.step)
        manager.save(checkpoint_number=training.step)
    return {
        "checkpoints": [f"{job.options.name}-{number}" for number in steps],
        "optimizer": type(optimizer).__name__,
        "objects": "net, optimizer, step",
        "left_out": list(filter(is_random_state, job.loaded.state["model"])),
    }


def _refuse_untracked(model: keras.Model, checkpoint: tf.train.Checkpoint) -> None:
    """Refuse a model with variables that TensorFlow does not find, and would leave out silently."""
    tracked = {id(trackable) for trackable in tf.train.TrackableView(checkpoint).descendants()}
    lost = [
        variable.path
        for variable in model.variables
        if not is_random_state(variable.path) and not {id(variable), id(variable.value)} & tracked
    ]
    if lost:
        raise ExportError(
            f"a TensorFlow checkpoint does not contain {', '.join(lost)} of this model, because "
            "Keras does not track layers in lists and dictionaries for TensorFlow. Assign each "
            "such layer to an attribute (self.first = …), or use --format keras, weights or "
            "safetensors"
        )


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
        raise ExportError(
            f"the model cannot be written to {path}: {reason}; nothing was left there. Free some "
            "space, or name another path"
        ) from error


_SIGNATURE = "serving_default"
_GENERATED = re.compile(r"(keras_tensor|input_layer|input)?(_\d+)?")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


def _write_saved_model(model: keras.Model, batch: Any, path: Path) -> dict[str, Any]:
    """Write a SavedModel, and return its inputs and outputs for display."""
    function, traced = _forward_pass(model, batch)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(_SIGNATURE, function)
    with _quiet():
        archive.write_out(str(path), verbose=False)
    inputs = traced.structured_input_signature[1]
    return {
        "signature": _SIGNATURE,
        "inputs": {name: _shown(spec) for name, spec in inputs.items()},
        "outputs": {name: _shown(out) for name, out in traced.structured_outputs.items()},
    }


def _write_frozen_graph(model: keras.Model, batch: Any, path: Path) -> dict[str, Any]:
    """Write a frozen graph, and return its inputs and outputs for display."""
    _, concrete = _forward_pass(model, batch)
    frozen = convert_variables_to_constants_v2(concrete)
    graph = frozen.graph.as_graph_def()
    _refuse_resources(graph)
    path.write_bytes(graph.SerializeToString(deterministic=True))
    outputs = dict(zip(sorted(concrete.structured_outputs), frozen.outputs, strict=True))
    return {
        "inputs": {tensor.name: _shown(tensor) for tensor in frozen.inputs},
        "outputs": {tensor.name: _shown(tensor) for tensor in outputs.values()},
        "output_names": {name: tensor.name for name, tensor in outputs.items()},
    }


def _forward_pass(model: keras.Model, batch: Any) -> tuple[Any, Any]:
    """Return a graph function from named inputs to named predictions, and its trace for any batch size.

    The structure and dtypes are those of ``batch``, the model's inputs, which must be dense arrays.
    """
    leaves = tf.nest.flatten(batch)
    tensors = list(getattr(model, "inputs", None) or ())
    if isinstance(batch, Mapping):
        # The order of `tf.nest` for the leaves of a mapping.
        names = [_clean(str(key)) for key in sorted(batch)]
        by_name = {_clean(tensor.name): tensor for tensor in tensors}
        tensors = [by_name.get(name) for name in names]
    else:
        tensors = tensors if len(tensors) == len(leaves) else [None] * len(leaves)
        names = [_input_name(t, i, len(leaves)) for i, t in enumerate(tensors)]
    if len(set(names)) != len(leaves):
        names = [f"input_{index}" for index in range(len(leaves))]
        tensors = [None] * len(leaves)
    signature = {
        name: _spec(name, leaf, tensor)
        for name, leaf, tensor in zip(names, leaves, tensors, strict=True)
    }

    def serve(**named: Any) -> dict[str, Any]:
        inputs = tf.nest.pack_sequence_as(batch, [named[name] for name in names])
        return _named_outputs(model(inputs, training=False))

    function = tf.function(serve, autograph=False)
    return function, function.get_concrete_function(**signature)


def _spec(name: str, leaf: Any, tensor: Any) -> tf.TensorSpec:
    """Return an input's specification for any number of samples: the model's own, or the batch's."""
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        raise ExportError(
            f"input {name!r} of the model is a {type(leaf).__name__}, which this form cannot name; "
            "use --format keras or weights"
        )
    value = tf.convert_to_tensor(leaf)
    uses_model_dtype = tensor is not None and value.dtype != tf.string
    dtype = tf.as_dtype(tensor.dtype) if uses_model_dtype else value.dtype
    shape = value.shape if tensor is None else tensor.shape
    return tf.TensorSpec([None, *shape[1:]], dtype, name=name)


def _input_name(tensor: Any, index: int, count: int) -> str:
    """Return the user's name of an input, or a generic one if Keras generated the name."""
    if tensor is not None and not _GENERATED.fullmatch(tensor.name):
        return _clean(re.sub(r"_\d+$", "", tensor.name))
    return "input" if count == 1 else f"input_{index}"


def _clean(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name).strip("_") or "input"


def _named_outputs(outputs: Any) -> dict[str, Any]:
    """Return a model's outputs by name: a mapping's names, ``output``, or ``output_0``, ``output_1``, …."""
    if isinstance(outputs, Mapping) and not any(map(tf.nest.is_nested, outputs.values())):
        return {_clean(str(name)): value for name, value in outputs.items()}
    leaves = tf.nest.flatten(outputs)
    if len(leaves) == 1:
        return {"output": leaves[0]}
    return {f"output_{index}": leaf for index, leaf in enumerate(leaves)}


def _shown(spec: Any) -> str:
    """Return a tensor's dtype and shape for display: ``float32[?, 10]``."""
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.dtype.name}[{sizes}]"


def _refuse_resources(graph: Any) -> None:
    kinds = {"HashTableV2", "MutableHashTableV2", "VarHandleOp", "LookupTableFindV2"}
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    resources = sorted({node.op for node in nodes if node.op in kinds})
    if resources:
        raise ExportError(
            f"the model's graph has {', '.join(resources)}, whose contents are not constants, so it "
            "cannot be frozen; use --format savedmodel, or leave the lookup out of the model"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses TensorFlow's output about the export."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
