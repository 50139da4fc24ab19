"""What Keras's objects lead to, by the names that their users know.

Layers are listed as ``model.layers`` lists them, weights and metrics by their names, and what a model
was compiled with as it was given. What Keras keeps about how layers are connected is left out:
through it one layer leads to every model that was ever made with it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from sweeper.inspection import keras_names
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import Sort, fields_of, is_users_class, label_of, sort_of

MOST_ITEMS = 20_000
"""Items of one container that a walk looks at; a longer one is data."""

_BOOKKEEPING = keras_names.CONNECTIONS | keras_names.REBUILT
_OF_COMPILING = frozenset().union(
    keras_names.COMPILED, keras_names.FUNCTIONS, {keras_names.OPTIMIZER, "history", "loss"}
)


@dataclass(frozen=True, slots=True)
class Part:
    """What an object leads to directly.

    Attributes:
        path: Where it is.
        thing: It.
        by_code: Whether a function merely uses it; otherwise it is held.
    """

    path: ObjectPath
    thing: Any
    by_code: bool = False


def of_model(model: Any, path: ObjectPath, *, compiled: bool) -> Iterator[Part]:
    fields = fields_of(model)
    bases = type(model).__mro__
    if keras.Sequential in bases or "_operations" in fields:
        yield from _listed(_layers_of(model, fields), path, "layers")
        yield from of_keras(model, Sort.MODEL, path, without=frozenset({"_layers"}))
    else:
        yield from of_keras(model, Sort.MODEL, path)
        yield from _listed(_layers_of(model, fields), path, "layers")
    if not compiled:
        return
    optimizer = fields.get("optimizer")
    if optimizer is not None:
        yield Part(path.attribute("optimizer"), optimizer)
    yield from _compiled(fields, path)


def _compiled(fields: dict[str, Any], path: ObjectPath) -> Iterator[Part]:
    compile_ = path.attribute("compile")
    loss = fields.get("loss")
    if sort_of(loss) is not Sort.LEAF:
        yield Part(compile_.argument("loss"), loss)
    metrics = fields.get("_compile_metrics")
    if metrics is not None:
        own = fields_of(metrics)
        for name in ("metrics", "weighted_metrics"):
            given = own.get(f"_user_{name}")
            if sort_of(given) is not Sort.LEAF:
                yield Part(compile_.argument(name), given)
        yield Part(path.attribute("compile_metrics"), metrics)
    for name in ("_compile_loss", "_loss_tracker"):
        if fields.get(name) is not None:
            yield Part(path.attribute(name.lstrip("_")), fields[name])


def _layers_of(model: Any, fields: dict[str, Any]) -> list[Any]:
    """What ``model.layers`` lists, without asking the model."""
    operations = fields.get("_operations")
    if operations is not None:
        return [op for op in operations if sort_of(op) in (Sort.LAYER, Sort.MODEL)]
    layers = items_of(fields["_layers"]) if "_layers" in fields else []
    if keras.Sequential in type(model).__mro__ and layers and _is_input(layers[0]):
        return layers[1:]
    return layers


def _is_input(layer: Any) -> bool:
    return type(layer) is keras.layers.InputLayer


def _listed(things: Iterable[Any], path: ObjectPath, name: str) -> Iterator[Part]:
    listed = path.attribute(name)
    for index, thing in enumerate(things):
        yield Part(listed.item(index, label_of(thing, sort_of(thing))), thing)


def of_keras(
    thing: Any, sort: Sort, path: ObjectPath, without: frozenset[str] = frozenset()
) -> Iterator[Part]:
    fields = fields_of(thing)
    users = is_users_class(type(thing))
    named = [] if users and sort in (Sort.LAYER, Sort.MODEL) else _in_lists(fields, sort, path)
    yield from named
    for name, value in list(fields.items()):
        if sort_of(value) is Sort.LEAF or name in _BOOKKEEPING or name in without:
            continue
        if (
            name.startswith(keras_names.TRACKING_PREFIXES)
            or name in keras_names.LISTS
            or name == "_layers"
        ):
            continue
        if sort is Sort.MODEL and name in _OF_COMPILING:
            continue
        if sort is Sort.CALLBACK and name in keras_names.GIVEN_TO_CALLBACKS:
            continue
        if sort is Sort.OPTIMIZER and name in ("_trainable_variables", "_variables"):
            continue
        yield Part(path.attribute(name if users else name.lstrip("_")), value)
    if users:
        yield from _in_lists(fields, sort, path)
    if "_layers" in fields and "_layers" not in without:
        yield from _listed(fields["_layers"], path, "layers")
    yield from of_classes(type(thing), path)


def _in_lists(fields: dict[str, Any], sort: Sort, path: ObjectPath) -> list[Part]:
    """What Keras's own lists have, each by its name."""
    lists = ("_variables",) if sort in (Sort.OPTIMIZER, Sort.METRIC) else keras_names.LISTS
    found = []
    for name in lists:
        listed = fields.get(name)
        if listed is None or sort_of(listed) is not Sort.LIST:
            continue
        for value in items_of(listed):
            label = label_of(value, sort_of(value))
            found.append(Part(path.attribute(label or name.lstrip("_")), value))
    return found


def of_classes(cls: type, path: ObjectPath) -> Iterator[Part]:
    """Class attributes and methods of the user's own classes."""
    for base in type.__dict__["__mro__"].__get__(cls):
        if not is_users_class(base):
            continue
        for name, member in list(type.__dict__["__dict__"].__get__(base).items()):
            if name.startswith("__") and name not in ("__call__", "__getitem__"):
                continue
            sort = sort_of(member)
            if sort not in (Sort.LEAF, Sort.CLASS):
                code = sort in (Sort.FUNCTION, Sort.DESCRIPTOR)
                yield Part(path.attribute(name), member, by_code=code)


def items_of(thing: Any) -> list[Any]:
    """The items of a list, a tuple or a deque, without a word from its class."""
    kind: Any = next(base for base in (list, tuple, deque) if base in type(thing).__mro__)
    # TensorFlow's wrapper of a list that is an attribute keeps the items beside itself.
    stored = fields_of(thing).get("_storage") if type(thing).__name__ == "ListWrapper" else None
    try:
        return list(
            itertools.islice(kind.__iter__(thing if stored is None else stored), MOST_ITEMS)
        )
    except RuntimeError:
        return []
