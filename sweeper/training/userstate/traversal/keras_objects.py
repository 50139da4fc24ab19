"""What a Keras object holds of the user's, distinguished from what Keras keeps for itself.

Everything that the user's own class assigns is looked at, and every name that Keras does not know;
of what Keras assigns, plain values alone, such as a rate that a callback changes: Keras's own lists
of layers and variables, and how layers are connected, are bookkeeping that it makes anew.
"""

from __future__ import annotations

import functools
from typing import Any

import keras

from sweeper.inspection import keras_names
from sweeper.inspection.code import assigned_by
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import Sort, fields_of, is_users_class, label_of, sort_of
from sweeper.training.encoding.leaves import is_plain
from sweeper.training.userstate.holders.objects import Attributes
from sweeper.training.userstate.traversal.built_ins import BUILT_INS, base_of

_BOOKKEEPING = frozenset().union(
    keras_names.CONNECTIONS,
    keras_names.REBUILT,
    keras_names.PLAIN,
    keras_names.FUNCTIONS,
    {keras_names.OPTIMIZER},
    keras_names.COMPILED,
    keras_names.OPTIMIZER_STATE,
    keras_names.LISTS,
    {keras_names.VARIABLES},
    keras_names.GIVEN_TO_CALLBACKS,
)
"""Names that Keras keeps for itself, or that other components capture; never the user's."""


def keras_edges(
    thing: Any, sort: Sort, path: ObjectPath
) -> tuple[Attributes, list[tuple[ObjectPath, Any]]]:
    """What holds the state of ``thing``'s attributes, and what it leads to.

    Args:
        thing: A model, layer, optimizer, metric, loss, callback, schedule, initializer or dataset.
        sort: Which.
        path: Where it is.
    """
    fields = fields_of(thing)
    skipped = _handles(thing) if sort is Sort.CALLBACK else frozenset()
    cls: Any = type(thing)
    keras_own, users = _of_keras(cls), _of_user(cls)
    watched, inside = [], []
    for name, value in list(fields.items()):
        if name in skipped or name.startswith(keras_names.TRACKING_PREFIXES):
            continue
        if name in _BOOKKEEPING and not (name in users and name not in keras_own):
            continue
        if name not in keras_own or name in users or is_plain(value):
            watched.append(name)
        inside.append((path.attribute(name), value))
    # A callback of Keras's makes some of its attributes as it goes.
    made_late = frozenset() if sort is Sort.CALLBACK else keras_own
    ignored = frozenset({*fields, *made_late, *_BOOKKEEPING, *skipped})
    holder = Attributes(thing, path.text, ignored, tuple(watched))
    return holder, inside + _listed(sort, fields, path)


def _handles(callback: Any) -> frozenset[str]:
    base = base_of(callback)
    return frozenset() if base is None else frozenset(BUILT_INS[base].handles)


def _listed(sort: Sort, fields: dict[str, Any], path: ObjectPath) -> list[tuple[ObjectPath, Any]]:
    """Keras's own lists: layers, variables, metrics, seed generators; and what was compiled in."""
    found: list[tuple[ObjectPath, Any]] = []
    for name in ("_layers", "_metrics", "_seed_generators"):
        for index, each in enumerate(fields.get(name) or ()):
            where = path.attribute(name.lstrip("_")).item(index, label_of(each, sort_of(each)))
            found.append((where, each))
    lists = ["_trainable_variables", "_non_trainable_variables"]
    if sort in (Sort.OPTIMIZER, Sort.METRIC):
        lists = ["_variables"]
    for name in lists:
        listed = fields.get(name) or ()
        found += [(path.attribute(str(getattr(each, "name", name))), each) for each in listed]
    if sort is Sort.OPTIMIZER:
        schedule = fields.get("_learning_rate")
        if schedule is not None:
            found.append((path.attribute("learning_rate"), schedule))
    if sort is Sort.MODEL:
        found += _compiled(fields, path)
    return found


def _compiled(fields: dict[str, Any], path: ObjectPath) -> list[tuple[ObjectPath, Any]]:
    found: list[tuple[ObjectPath, Any]] = []
    optimizer = fields.get("optimizer")
    if optimizer is not None:
        found.append((path.attribute("optimizer"), optimizer))
    compile_ = path.attribute("compile")
    if fields.get("loss") is not None:
        found.append((compile_.argument("loss"), fields["loss"]))
    metrics = fields.get("_compile_metrics")
    if metrics is not None:
        own = fields_of(metrics)
        for name in ("metrics", "weighted_metrics"):
            given = own.get(f"_user_{name}")
            if given is not None:
                found.append((compile_.argument(name), given))
        for index, metric in enumerate(metrics.metrics):
            found.append((path.attribute("metrics").item(index, metric.name), metric))
    loss = fields.get("_compile_loss")
    for index, each in enumerate(getattr(loss, "_flat_losses", None) or ()):
        found.append((compile_.argument("loss").item(index), getattr(each, "loss", each)))
    if fields.get("_loss_tracker") is not None:
        found.append((path.attribute("loss_tracker"), fields["_loss_tracker"]))
    return found


@functools.cache
def _of_keras(cls: Any) -> frozenset[str]:
    """Names that Keras's code assigns on an object of the class."""
    names = assigned_by(cls, library=True)
    if issubclass(cls, keras.Model):
        names |= frozenset(vars(keras.Model()))
    return names


@functools.cache
def _of_user(cls: Any) -> frozenset[str]:
    """Names that the user's own code assigns in methods of the class."""
    return assigned_by(cls, library=False) if _has_users_part(cls) else frozenset()


def _has_users_part(cls: type) -> bool:
    return any(is_users_class(base) for base in cls.__mro__)
