"""Warm start of a training: values of a file are matched with the model's variables, compared, and assigned.

All values that a file has of a model are read before any is compared, and all variables are compared before
any is assigned. So the model gets all values, or the trial fails with all mismatches, and a damaged file
changes nothing. Values are copied into the existing variables.

`keras.Model.load_weights` and `tf.train.Checkpoint.read` find the same values, but convert dtypes without
a message, ignore what the model does not have, know no names of other versions, and assign some variables
before they fail. So the libraries' own traversals and file readers are used here, and the comparison is the
same for all formats: Keras weights, TensorFlow checkpoints, our own.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import h5py
import keras
import numpy as np
import tensorflow as tf

# Keys in files follow Keras's own traversal of a model, which is not public.
from keras.src.models.functional import Functional
from keras.src.saving.saving_lib import H5IOStore, _save_state
from keras.src.utils.naming import to_snake_case

from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.tensors import Array
from sweeper.declarations.warm_start import Mismatch, MismatchKind, WarmStart, WarmStartReport
from sweeper.errors import CheckpointError, CorruptCheckpointError, WarmStartError
from sweeper.inspection import keras_names
from sweeper.inspection.sorts import is_variable
from sweeper.support.paths import Location, RemotePath
from sweeper.train.codec import form_of
from sweeper.train.state.variables import path_of
from sweeper.train.warmstart.source import LocatedFile, is_random_state, locate, variables_of


@dataclass(frozen=True, slots=True)
class Match:
    """A Keras variable or ``tf.Variable`` of the model, and the name of its value in a file, or why it has none."""

    variable: Any = field(repr=False)
    key: str | None
    reason: str = "not in it"

    @property
    def name(self) -> str:
        return path_of(self.variable)


@dataclass(frozen=True)
class StoredWeights:
    """Values that a file has of one model, without the states of random generators, by name.

    The optimizer's variables are in their order, with names; None for a foreign format.
    """

    kind: str
    values: Mapping[str, Array]
    matches: Sequence[Match]
    optimizer: Mapping[str, Array] | None = None


_MOST_NAMES = 3
_REPEATED = re.compile(r"(_\d+)?(#\d+)?$")


@dataclass(frozen=True)
class WarmValues:
    """A matched warm start, before it is assigned."""

    report: WarmStartReport
    pairs: tuple[tuple[Any, Array], ...] = field(repr=False)

    def assign(self) -> None:
        for variable, value in self.pairs:
            variable.assign(value)


def match_warm_start(options: WarmStart, model: keras.Model) -> WarmValues:
    """Find the values of the variables of ``model``, which has all of the training, in the file of a warm start.

    Raises:
        WarmStartError: The file is missing, damaged or of an unknown format; or it and the model do not fit.
        CheckpointError: The file cannot be read, or was changed since the study was created.
    """
    _check_built(model)
    located = locate(options)
    digest = located.digest()
    if options.digest not in (None, digest):
        raise CheckpointError(
            f"the warm start {located.path} has changed: its digest is {digest}, expected "
            f"{options.digest}; restore the file with which the study started, or give the study "
            "another name"
        )
    try:
        weights = read_weights(located, model, options)
    except OSError as error:
        raise CheckpointError(
            f"the warm start {located.path} cannot be read: {error}; check the disk, then resume"
        ) from error
    if located.digest() != digest:
        raise CheckpointError(
            f"the warm start {located.path} was changed while it was read; start again"
        )
    taken = {match.key for match in weights.matches}
    extra = [name for name in weights.values if name not in taken]
    fitting, mismatches = _compare(weights.matches, weights.values, extra)
    of_the_model = len(fitting)
    if options.optimizer:
        slots, differing = _compare_optimizer(model, weights, str(located.path))
        fitting = fitting + slots
        mismatches = mismatches + differing
    report = WarmStartReport(
        path=str(located.path),
        kind=weights.kind,
        digest=digest,
        model=model.name,
        matched=tuple((match.name, str(match.key)) for match, _ in fitting),
        of=len(weights.matches),
        mismatches=tuple(mismatches),
        optimizer=len(fitting) - of_the_model,
    )
    if (options.strict and report.mismatches) or not of_the_model:
        raise WarmStartError(report.refusal(strict=options.strict))
    return WarmValues(report, tuple((match.variable, value) for match, value in fitting))


Compared = tuple[list[tuple[Match, Array]], list[Mismatch]]
"""The variables that fit, with their values, and the mismatches."""


def _compare(
    matches: Sequence[Match], values: Mapping[str, Array], extra: Iterable[str]
) -> Compared:
    """Compare the shapes and dtypes of variables with those of values; ``extra`` have no variable."""
    fitting = []
    mismatches = []
    for match in matches:
        value = values.get(match.key or "")
        if value is None:
            mismatches.append(Mismatch("missing", match.name, match.reason))
            continue
        dtype = keras.backend.standardize_dtype(match.variable.dtype)
        shape = tuple(match.variable.shape)
        if (shape, dtype) == (value.shape, value.dtype.name):
            fitting.append((match, value))
            continue
        kind: MismatchKind = "other dtype" if shape == value.shape else "other shape"
        description = f"{dtype}{list(shape)}, and {form_of(value)} in it ({match.key})"
        mismatches.append(Mismatch(kind, match.name, description))
    mismatches += [Mismatch("extra", name, form_of(values[name])) for name in extra]
    return fitting, mismatches


def _compare_optimizer(model: keras.Model, weights: StoredWeights, path: str) -> Compared:
    """Compare the optimizer's variables, by their order, without its learning rate."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        raise WarmStartError(
            f"optimizer=True: the model {model.name!r} has no optimizer with variables before its "
            "first step; leave it out (optimizer=False)"
        )
    if weights.optimizer is None:
        raise WarmStartError(
            f"optimizer=True: the warm start {path} is a {weights.kind} file; an optimizer's state is "
            "taken from a checkpoint of sweeper's only (WarmStart.from_trial)"
        )
    if not weights.optimizer:
        raise WarmStartError(f"the warm start {path} has no optimizer state")
    rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
    names = list(weights.optimizer)
    variables = optimizer.variables
    matches = []
    for index, (variable, name) in enumerate(zip_longest(variables, names[: len(variables)])):
        if variable is rate:
            continue
        reason = f"not in it; looked for optimizer variable {index}"
        if name is not None and _slot(name) != _slot(variable.path):
            # Adam's first moments and SGD's momentum have the same shapes.
            matches.append(Match(variable, None, f"{reason}, which is {name} there"))
        else:
            matches.append(Match(variable, name, reason))
    return _compare(matches, weights.optimizer, names[len(variables) :])


def _slot(name: str) -> str:
    """Return what an optimizer's variable is for: ``momentum`` for ``sgd/dense_kernel_momentum``."""
    return _REPEATED.sub("", name).rpartition("/")[2].rpartition("_")[2]


def _check_built(model: keras.Model) -> None:
    """Refuse a model whose variables are created by the first batch; name its layers without variables."""
    inner = model._flatten_layers(include_self=False)
    late = [layer.name for layer in inner if not layer.built]
    if not variables_of(model) or (model.run_eagerly and late):
        named = ", ".join(map(repr, late[:_MOST_NAMES])) or repr(model.name)
        raise WarmStartError(
            f"the model {model.name!r} has no variables yet in {named}, so a warm start would "
            "have no effect there; build it in the model factory: model.build(shape), or call it "
            "on a batch"
        )


def read_weights(located: LocatedFile, model: keras.Model, options: WarmStart) -> StoredWeights:
    """Read the values that a file has of ``model``; see `match_warm_start` for errors."""
    if located.format == "sweeper" or isinstance(located.path, RemotePath):
        return _read_sweeper(located.path, model)
    match located.format:
        case "hdf5":
            return _read_hdf5(located.path, located.path, model, "Keras weights")
        case "keras":
            return _read_keras_file(located.path, model)
        case "tf-checkpoint":
            return _read_tensorflow(located.path, model, options)


def _looked_for(names: Sequence[str]) -> str:
    return f"not in it; looked for {' or '.join(names)}" if names else "not in it"


# sweeper's checkpoints

_NUMBERED = re.compile(r"([^/]+)_\d+(?=/|$)")


def _read_sweeper(path: Location, model: keras.Model) -> StoredWeights:
    try:
        loaded = load_checkpoint(path)
    except CorruptCheckpointError as error:
        raise WarmStartError(
            f"the warm start {path} is damaged: {error}; give another checkpoint of its trial"
        ) from error
    if same := loaded.state.get("same_as"):
        raise WarmStartError(
            f"the warm start {path} is the model at the end of a trial, which only names the checkpoint that it "
            f"equals; give that one, {same['name']}, or WarmStart.from_trial(…)"
        )
    stored_paths: list[str] = loaded.state["model"]
    variables = list({id(v): v for v in model.variables}.values())
    variable_paths = [v.path for v in variables]
    names = unique_names(stored_paths)
    targets = unique_names(variable_paths)
    if not set(targets) <= set(names):
        # Keras counts layers without a name over the whole process: `dense_7` here was `dense` there. A number in
        # a name of the user's stays, because `block_2` is not `block_1`.
        layers = model._flatten_layers()
        generated = {to_snake_case(type(layer).__name__) for layer in layers}
        names, targets = (
            _without_numbers(paths, generated) for paths in (stored_paths, variable_paths)
        )
        if not set(targets) & set(names):
            below = (
                [path.partition("/")[2] or path for path in group]
                for group in (stored_paths, variable_paths)
            )
            names, targets = (_without_numbers(paths, generated) for paths in below)
    tensors = [loaded.tensors[f"model/{index:05d}"] for index in range(len(stored_paths))]
    return StoredWeights(
        kind="checkpoint of sweeper's",
        values=_without_random_states(dict(zip(names, tensors, strict=True))),
        matches=[
            Match(v, name if name in names else None, _looked_for([name]))
            for v, name in zip(variables, targets, strict=True)
            if not is_random_state(v.path)
        ],
        optimizer={
            name: loaded.tensors[f"optimizer/{index:05d}"]
            for index, name in enumerate(unique_names(loaded.state["optimizer"]))
        },
    )


def unique_names(names: Sequence[str], mark: str = "#") -> list[str]:
    """Return the names; a repeated name gets a suffix ``#2``, ``#3``, …, or another ``mark``."""
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}{mark}{counts[name]}")
    return unique


def _without_numbers(paths: Sequence[str], generated: Collection[str]) -> list[str]:
    """Return the paths without the numbers of ``generated`` names, as Keras makes them from a class."""

    def shortened(part: re.Match[str]) -> str:
        return part[1] if part[1] in generated else part[0]

    return unique_names([_NUMBERED.sub(shortened, path) for path in paths])


def _without_random_states(values: Mapping[str, Array]) -> dict[str, Array]:
    return {n: value for n, value in values.items() if not is_random_state(n.partition("#")[0])}


# Keras's files

_WEIGHTS = "model.weights.h5"
_COUNTED = re.compile(r"(.+?)(?:_\d+)?")


def _read_keras_file(path: Path, model: keras.Model) -> StoredWeights:
    """Read the weights in a ``.keras`` file. The model in it is not built, because it may name code."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if _WEIGHTS not in names:
                some = ", ".join(names[:6]) or "nothing"
                raise WarmStartError(
                    f"the warm start {path} is a zip file with {some}; expected a .keras file "
                    f"with {_WEIGHTS} in it, as model.save('….keras') writes it"
                )
            content = archive.read(_WEIGHTS)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise WarmStartError(
            f"the warm start {path} is not a complete .keras file ({error}); it may have been "
            "truncated: write it again"
        ) from error
    return _read_hdf5(io.BytesIO(content), path, model, "Keras model")


def _read_hdf5(file: Path | BinaryIO, path: Path, model: keras.Model, kind: str) -> StoredWeights:
    """Read Keras 3's weights in HDF5.

    Keras stores values by the layer's position in its model (``layers/dense_1/vars/0``, or
    ``block/norms/…`` by attributes). The positions come from Keras's own traversal of the model.
    """
    try:
        with h5py.File(file, "r") as opened:
            if "layer_names" in opened.get("model_weights", opened).attrs:
                raise WarmStartError(
                    f"the warm start {path} has the HDF5 layout of Keras 2; load it into a model "
                    "with model.load_weights, and write that with save_weights('….weights.h5')"
                )
            values, layers = _datasets(opened)
    except OSError as error:
        raise WarmStartError(
            f"the warm start {path} cannot be read as HDF5 ({error}); it may have been "
            "truncated: write it again"
        ) from error
    values = {n: v for n, v in values.items() if not n.startswith("optimizer/")}
    if not any("/vars/" in f"/{name}" for name in values):
        some = ", ".join(list(values)[:4]) or "no values"
        raise WarmStartError(
            f"the warm start {path} is an HDF5 file with {some}; expected Keras "
            "weights, a file of model.save_weights('….weights.h5')"
        )
    recorded = _RecordingStore()
    _save_state(model, recorded, None, "", set())
    matches = []
    for variable in variables_of(model):
        key = recorded.keys.get(id(variable))
        if key is None:
            reason = "not in it separately: its layer has its own save_own_variables"
        elif key not in values:
            reason = _looked_for([key])
        else:
            reason = _named_differently(key, recorded.names, layers)
        matches.append(Match(variable, None if reason else key, reason))
    return StoredWeights(kind, values, matches)


def _datasets(file: h5py.File) -> tuple[dict[str, Array], dict[str, str]]:
    """Return all values by name, and the names of the layers by group; links are not followed."""
    values: dict[str, Array] = {}
    layers: dict[str, str] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Group):
            if "name" in node.attrs:
                layers[name] = str(node.attrs["name"])
        elif not node.external and not node.is_virtual:
            value = np.asarray(node[()])
            if value.dtype.kind == "V" and "dtype" in node.attrs:
                # Keras writes bfloat16 as bytes with an attribute.
                value = value.view(tf.as_dtype(str(node.attrs["dtype"])).as_numpy_dtype)
            values[name] = value

    file.visititems(visit)
    return values, layers


def _named_differently(
    key: str, own_names: Mapping[str, str], other_names: Mapping[str, str]
) -> str:
    """Return the reason if the value belongs to another layer and both layers have the user's names."""
    group = key.rpartition("/")[0]
    parts = group.split("/")
    # A path through an attribute has its name; a path through ``layers`` has a class and a count.
    kind = _COUNTED.fullmatch(parts[-2]) if "layers" in parts[-3:-2] else None
    ours_name = own_names.get(group)
    theirs_name = other_names.get(group)
    if kind is None or ours_name is None or theirs_name is None or ours_name == theirs_name:
        return ""
    generated = re.compile(rf"{re.escape(kind[1])}(_\d+)?")
    if generated.fullmatch(ours_name) or generated.fullmatch(theirs_name):
        return ""
    return f"named differently: {key} in it belongs to the layer {theirs_name!r}, and this is {ours_name!r}"


class _RecordingStore(H5IOStore):  # type: ignore[misc] # Keras requires its own class
    """Store that records the key under which Keras would write each variable, and writes nothing."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.names: dict[str, str] = {}
        self._group = ""
        self._seen: list[Any] = []

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: dict[str, str] | None = None) -> _RecordingStore:
        self._group = f"{path}/vars" if path else "vars"
        if metadata:
            self.names[self._group] = metadata["name"]
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        # The value is held, because an id is unique only as long as its object lives.
        self._seen.append(value)
        self.keys.setdefault(id(value), f"{self._group}/{key}")


# TensorFlow's checkpoints

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
"""Errors that TensorFlow raises for a damaged file."""

_NOT_OF_THE_MODEL = frozenset().union(
    keras_names.CONNECTIONS,
    keras_names.REBUILT - {"_functional"},
    {keras_names.OPTIMIZER},
    keras_names.COMPILED,
    keras_names.LISTS,
    keras_names.IN_TF_CHECKPOINTS,
)
"""Edges of Keras's bookkeeping, such as positions in its lists, which may differ between versions."""


class _Node(NamedTuple):
    """An object in a checkpoint: its children by name, and the key of its value, if any."""

    children: Mapping[str, int]
    key: str | None


def _read_tensorflow(prefix: Path, model: keras.Model, options: WarmStart) -> StoredWeights:
    """Read an object-based checkpoint of Keras 3, Keras 2, an Estimator or user code.

    A checkpoint stores each variable once, under one of the paths to it, which may lead through the
    optimizer (``optimizer/_trainable_variables/3``). So, like TensorFlow's own restore, this follows
    the model and the checkpoint's object graph together, by names of attributes. Keras 3's names
    differ from those of Keras 2 and Estimators (``_kernel`` and ``kernel``, ``_operations/2`` and
    ``layer-2``); both are accepted.
    """
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        nodes = _object_graph(reader.get_tensor(_GRAPH)) if _GRAPH in shapes else []
        if not nodes:
            some = ", ".join(sorted(shapes)[:3]) or "no values"
            raise WarmStartError(
                f"the warm start {prefix} is a TensorFlow 1 checkpoint, which stores values by "
                f"the names of graph variables ({some}); expected an object-based one: load it "
                "into a model with TensorFlow 1's API, and write that with tf.train.Checkpoint "
                "or save_weights"
            )
        root = _root_of(model, nodes, shapes, options, prefix)
        below = _values_below(nodes, root)
        values = {name: np.asarray(reader.get_tensor(key)) for key, name in below.items()}
    except _UNREADABLE as error:
        first = str(error).strip().partition("\n")[0]
        raise WarmStartError(
            f"the warm start {prefix} cannot be read as a TensorFlow checkpoint ({first}); it "
            "may have been cut off, or one of its files is missing: copy it again"
        ) from error
    walked = _walk(nodes, root, model)
    model_ids = {id(v) for v in model.variables}
    # A tf.Variable of the user's is in the checkpoint, but not in Keras's list.
    user_variables = []
    for variable_id, (variable, key, _) in walked.items():
        if variable_id not in model_ids and key in below:
            user_variables.append(variable)
    matches = []
    for variable in [*variables_of(model), *user_variables]:
        _, key, path = walked.get(id(variable), (variable, None, ""))
        matches.append(Match(variable, below.get(key or ""), _looked_for([path] if path else [])))
    return StoredWeights("TensorFlow checkpoint", _without_random_states(values), matches)


def _object_graph(content: bytes) -> list[_Node]:
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph()
    graph.ParseFromString(content)
    return [
        _Node(
            {child.local_name: child.node_id for child in node.children},
            next((a.checkpoint_key for a in node.attributes if a.name == _VALUE), None),
        )
        for node in graph.nodes
    ]


def _child(nodes: Sequence[_Node], node: int, name: str) -> int | None:
    """Return the child ``name``, with or without a leading underscore, or None."""
    children = nodes[node].children
    other = name[1:] if name.startswith("_") else f"_{name}"
    return children.get(name, children.get(other))


def _values_below(nodes: Sequence[_Node], root: int) -> dict[str, str]:
    """Return the shortest paths of all values of a model below ``root``, by key."""
    paths: dict[str, str] = {}
    visited = {root}
    waiting = deque([(root, "")])
    while waiting:
        node, path = waiting.popleft()
        key = nodes[node].key
        if key is not None:
            paths.setdefault(key, path)
        for name, child in sorted(nodes[node].children.items()):
            if child not in visited and name not in _NOT_OF_THE_MODEL:
                visited.add(child)
                waiting.append((child, f"{path}/{name}" if path else name))
    return paths


_Walked = tuple[Any, str | None, str]
"""A variable of the model, the key of its value in the checkpoint, and the path to it."""


def _walk(nodes: Sequence[_Node], root: int, model: keras.Model) -> dict[int, _Walked]:
    """Return the variables that are reachable from ``model``, by id; the shortest path to a value counts."""
    walked: dict[int, _Walked] = {}
    waiting: deque[tuple[str, Any, int | None]] = deque([("", model, root)])
    visited: set[tuple[int, int | None]] = set()
    while waiting:
        path, obj, node = waiting.popleft()
        if (id(obj), node) in visited:
            continue
        visited.add((id(obj), node))
        if is_variable(obj):
            key = None if node is None else nodes[node].key
            if id(obj) not in walked or (walked[id(obj)][1] is None and key is not None):
                walked[id(obj)] = (obj, key, path)
            continue
        for names, child in _children(obj):
            children = [] if node is None else [_child(nodes, node, name) for name in names]
            where = f"{path}/{names[0]}" if path else names[0]
            waiting.append(
                (where, child, next((index for index in children if index is not None), None))
            )
    return walked


def _children(obj: Any) -> Iterator[tuple[list[str], Any]]:
    """Yield an object's children, each with its possible names in a checkpoint."""
    if isinstance(obj, Mapping | list | tuple):
        items = obj.items() if isinstance(obj, Mapping) else enumerate(obj)
        yield from (([str(key)], value) for key, value in items)
        return
    if isinstance(obj, keras.Sequential | Functional):
        yield from _layers_by_position(obj)
    tracked: Mapping[str, Any] = {}
    if hasattr(obj, "_trackable_children"):
        tracked = obj._trackable_children()
        for name, child in tracked.items():
            if name not in _NOT_OF_THE_MODEL:
                called = str(getattr(child, "name", "")).partition(":")[0]
                yield [name, called] if is_variable(child) else [name], child
    if isinstance(obj, keras.layers.Layer):
        # Layers in lists and dictionaries: Keras 2 tracked them for TensorFlow, Keras 3 does not.
        beside = {*tracked, *_NOT_OF_THE_MODEL, keras_names.LAYERS}
        for name, child in sorted(vars(obj).items()):
            if isinstance(child, list | tuple | Mapping) and name not in beside:
                yield [name], child


def _layers_by_position(model: Any) -> Iterator[tuple[list[str], Any]]:
    """Yield the layers of a functional or sequential model with Keras 2's names."""
    weighted = count()
    for index, layer in enumerate(model.layers):
        by_weight = [f"layer_with_weights-{next(weighted)}"] if layer.weights else []
        yield [*by_weight, f"layer-{index}"], layer


def _root_of(
    model: keras.Model,
    nodes: Sequence[_Node],
    shapes: Mapping[str, Sequence[int]],
    options: WarmStart,
    prefix: Path,
) -> int:
    """Return the object in the checkpoint that corresponds to the model: `WarmStart.root`, or the one that fits best."""
    children = nodes[0].children
    if options.root is not None:
        node: int | None = 0
        for name in filter(None, options.root.split("/")):
            node = None if node is None else _child(nodes, node, name)
        if node is None:
            names = ", ".join(sorted(children)) or "nothing"
            raise WarmStartError(f"the warm start {prefix} has no {options.root!r}; it has {names}")
        return node
    fitting: dict[frozenset[str], tuple[int, str]] = {}
    for name, node in [("", 0), *sorted(children.items())]:
        keys: set[str] = set()
        for variable, key, _ in _walk(nodes, node, model).values():
            if key and list(variable.shape) == list(shapes.get(key, [-1])):
                keys.add(key)
        fitting.setdefault(frozenset(keys), (node, name))
    most = max(map(len, fitting))
    best = [candidate for keys, candidate in fitting.items() if len(keys) == most]
    if most and len(best) > 1:
        named = " or ".join(f"root={name!r}" for _, name in best)
        raise WarmStartError(
            f"the warm start {prefix} has {len(best)} objects that fit the model "
            f"{model.name!r} equally; choose one: {named}"
        )
    return best[0][0]
