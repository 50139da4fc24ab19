"""Whether reading a data set changes it: what makes one that was made once a state, or none.

A data set that gives the same batches whenever it is read may be made once and read by every trial:
arrays, a ``tf.data.Dataset`` that draws nothing anew, a `PyDataset` whose methods only read. One that
goes on from what was read before is a state, and belongs to one trial.
"""

from __future__ import annotations

from typing import Any

import keras

from sweeper.inspection.code import changes_of
from sweeper.inspection.sorts import fields_of, is_users_class

_HOOKS = ("on_epoch_begin", "on_epoch_end")
_CHANGING = frozenset({"__dict__", "next", "setattr", "shuffle", "vars"})
"""Names of functions that may change what they are given, where no attribute is seen to be assigned."""


def reading_changes(dataset: Any) -> bool:
    """Whether a `PyDataset` is changed by being read, as far as its class's code tells.

    It is where a hook between epochs does anything, where a method assigns to an attribute or
    changes a container in one, and where it is a library's, whose code is not read. A generator or
    an iterator that it holds is found by itself.
    """
    cls = type(dataset)
    own = cls.__mro__[: cls.__mro__.index(keras.utils.PyDataset)]
    if not all(map(is_users_class, own)):
        return True
    hooks = [vars(base)[hook] for base in own for hook in _HOOKS if hook in vars(base)]
    if any(_does_something(hook) for hook in hooks):
        return True
    changes = changes_of(cls)
    return bool(changes.methods) or not changes.names.isdisjoint(_CHANGING)


def _does_something(hook: Any) -> bool:
    """Whether a hook is more than ``pass``."""
    code = getattr(hook, "__code__", None)
    return code is None or bool(code.co_names)


def draws_anew(dataset: Any) -> bool:
    """Whether each iterator of a ``tf.data.Dataset`` draws from a generator inside it."""
    fields = fields_of(dataset)
    kind = type(dataset).__name__
    return kind == "_RandomDataset" or (
        kind == "_ShuffleDataset" and bool(fields.get("_reshuffle_each_iteration"))
    )
