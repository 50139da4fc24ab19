"""Component of the state of the user's objects.

When training starts, a walk follows attributes, containers, closures, classes and module variables from the objects
that the factories returned, and records each object with state. A capture encodes those that have changed since, and refuses by name those that cannot be encoded. A restore sets the
captured objects, and resets others that have changed in the new process before the restore.

Where ``fit`` is called again in one process, a training starts with what the earlier one has changed and created,
and a new process does not. So each checkpoint has also what the checkpoint had from which the training continues,
and objects that the earlier one has created are encoded completely. If the training continues from where that one
ended, nothing is restored: the objects are as they were, but for what the script has changed between the two.

The state of a callback with its own ``get_state`` and ``set_state`` is the result of its ``get_state``. What this
leaves out is lost on resume without an error. So each checkpoint has fingerprints (`LeftOut`) of all values that
the callback reaches and training has changed. They are found by a new walk each time, because a ``set_state``
creates new objects where training changes objects in place; both have the same paths. Fingerprints are
compared with those of a replay, never restored.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

import keras
import numpy as np
import tensorflow as tf
import xxhash

from sweeper.checkpoint.format import relocated
from sweeper.errors import RestoreError, UncapturableError
from sweeper.inspection.code import closure_of, globals_of, names_in
from sweeper.inspection.sorts import class_name, fields_of, framework_variables, is_users_module
from sweeper.inspection.walk import MOST, ObjectPath
from sweeper.train import codec
from sweeper.train.component import Component
from sweeper.train.randomness.generators import global_seed_generator
from sweeper.train.userstate.codec import UserDecoder, UserEncoder, path_in
from sweeper.train.userstate.files import AppendedFile, WrittenFile
from sweeper.train.userstate.holders import (
    KEYED,
    NAMED,
    Cache,
    Holder,
    MappingVariables,
    Structure,
    Value,
    Variable,
)
from sweeper.train.userstate.walk import Node, Roots, Walk

_OF_KERAS = (keras.layers.Layer, keras.optimizers.Optimizer)

_KEEP = "keep numbers, strings, arrays, variables or containers of these there"
_MAKE_NEW = ", or make a new one where it is used"
_METHODS = (
    ", or give the callback two methods, get_state(self), which returns numbers, strings, arrays or "
    "containers of these, and set_state(self, state), which restores them"
)
_EXEMPT = "; an object that only writes output, such as a log, is exempted by trial.output_only(…)"


class UserState(Component):
    """Component of the state of the user's objects, without the ``covered`` variables of other components."""

    name = "user_state"

    def __init__(
        self,
        roots: Roots,
        covered: Callable[[], frozenset[int]] = frozenset,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._roots = roots
        self._covered = covered
        self._notify = notify
        self._walk = Walk(frozenset(), frozenset())
        self._left_out: LeftOut | None = None
        """None until training starts."""
        self._holders: list[Holder] = []
        self._of_data: dict[str, set[int]] = {}
        self._ahead: dict[str, set[int]] = {}
        self._behind: dict[str, tuple[set[int], set[tuple[int, str]]]] = {}
        """Ids of the objects that the function of a cache leads to, and the module variables that it uses."""
        self._baked: list[tuple[Any, dict[str, Any]]] = []
        """Functions that were traced during training, with the Python values that they read."""
        self._unbuilt: list[Node] = []
        """Layers, optimizers and metrics that create their variables when they are first used."""
        self._nodes: dict[int, Node] = {}
        """The nodes of the walk that a new process has, too."""
        self._changed_before: dict[str, codec.Json] = {}
        """Changes by an earlier training of this process, by path, as the restored checkpoint has them."""
        self._is_read_again = False
        self.in_flight: Callable[[], frozenset[str]] = frozenset
        """Returns the uses of data whose pass is open; see `Reopening`."""

    def begin(self) -> None:
        walk = Walk(self._covered(), self._roots.ids_exempt())
        in_step = walk.visit(self._roots.given())
        self._of_data = {use: walk.visit(roots) for use, roots in self._roots.by_use().items()}
        for use, alone in self._written_alone(walk).items():
            self._of_data[use] |= walk.visit(alone)
        self._walk = walk
        self._holders = walk.holders
        self._refuse_written(in_step)
        self._ahead = {}
        for use, reached in self._of_data.items():
            if use in self._roots.read_ahead:
                only_in_data = reached - in_step
                self._ahead[use] = {id(h) for h in self._holders if _key(h) in only_in_data}
        exempt = self._roots.ids_exempt()
        nodes = list(walk.nodes.values())
        built_later = [node for node in nodes if _is_unbuilt(node.obj)]
        self._unbuilt = [node for node in built_later if id(node.obj) not in exempt]
        for node in nodes:
            if isinstance(node.holder, Cache):
                used: set[tuple[int, str]] = set()
                reached = walk.visit([(ObjectPath(node.path), node.obj.__wrapped__)], used)
                self._behind[node.path] = reached, used
        walk.begin()
        created = {} if self._roots.earlier is None else self._roots.earlier.created
        self._holders = [holder for holder in walk.holders if id(holder.obj) not in created]
        self._nodes = {key: node for key, node in walk.nodes.items() if key not in created}
        self._left_out = LeftOut(walk, self._roots, self._covered)
        if walk.cut:
            self._notify(
                f"the study's code reaches more than {MOST:,} objects; the state of the others is "
                "not in the checkpoints"
            )

    def _written_alone(self, walk: Walk) -> dict[str, list[tuple[ObjectPath, Any]]]:
        """Return the variables that only functions of the data use, such as a former global seed generator."""
        generator = global_seed_generator()
        others = [*self._roots.model.variables, *([] if generator is None else [generator.state])]
        covered = {*_variables_of(walk.holders), *(id(variable.value) for variable in others)}
        return {
            use: [
                (
                    ObjectPath(self._roots.shown.get(use, use)).noted(
                        f"variable {index} of its functions"
                    ),
                    variable,
                )
                for index, variable in enumerate(variables.values())
                if id(variable) not in covered
            ]
            for use, variables in self._roots.written.items()
        }

    def _refuse_written(self, in_step: set[int]) -> None:
        """Refuse a variable that a dataset read ahead writes and that other code uses as well."""
        ids = list(chain.from_iterable(self._roots.written.values()))
        holders = _variables_of(self._holders)
        for variable_id in ids:
            holder = holders.get(variable_id)
            if holder is None or ids.count(variable_id) > 1 or _key(holder) in in_step:
                label = "a variable" if holder is None else holder.path
                raise UncapturableError(
                    f"{label} is written by a function of a dataset, which reads ahead of the "
                    "training, and is also used elsewhere or not found in the study's code; so "
                    "its value at a checkpoint belongs to no position. Give the function its own "
                    "layer or generator"
                )

    def undo(self) -> None:
        covered = self._covered()
        for holder in self._holders:
            if not holder.changed():
                continue
            if isinstance(holder, Structure) and holder.shape == NAMED:
                initial = dict(zip(holder.keys, holder.values, strict=True))
                for name, value in zip(*holder.read(), strict=True):
                    lasting = id(value) in covered or isinstance(value, _OF_KERAS)
                    if initial.get(name) is None and lasting:
                        initial[name] = value
                holder.keys = list(initial)
                holder.values = list(initial.values())
            try:
                holder.reset()
            except codec.UnplaceableError as error:
                raise UncapturableError(_cannot(self._roots, holder.path, str(error))) from error

    def traced(self, function: Any) -> None:
        """Record a function that TensorFlow traced during training, with the Python values that it reads.

        They are constants in the graph, and a resumed process traces it again with those of that time.
        Earlier traces see the same values in every process.
        """
        values = {} if self._left_out is None else _values_read(function)
        if values:
            self._baked.append((function, values))

    def _check_baked(self) -> None:
        for function, values in self._baked:
            current = _values_read(function)
            for path, constant in values.items():
                if codec.same(constant, current.get(path, codec.MISSING)):
                    continue
                raise UncapturableError(
                    f"{getattr(function, '__qualname__', function)} was traced by TensorFlow during "
                    f"training, with {path} = {constant!r} as a constant in its graph, and {path} is "
                    f"{current.get(path, codec.MISSING)!r} now: this training continues with the first value, "
                    f"and a resumed one would be traced with the second. Pass {path} to the "
                    "function as a tensor, or keep it in a tf.Variable"
                )

    def _check_built(self) -> None:
        """Refuse an object that was first used during training, and is not a part of the model."""
        if not self._unbuilt:
            return
        covered = self._covered() | self._walk.nodes.keys()
        for node in self._unbuilt:
            if not covered.issuperset(map(id, framework_variables(node.obj) or ())):
                raise UncapturableError(
                    f"{node.path}, a {class_name(type(node.obj))}, created its variables during "
                    "training, and a resumed trial would have it without them; build it in the "
                    "factory: call its build(…), or call it once"
                )

    def capture(self, tensors: codec.Tensors) -> codec.Json:
        self._check_baked()
        self._check_built()
        saved = self._capture(self._settled(), tensors)
        # Only compared, never restored.
        saved["left_out"] = [] if self._left_out is None else self._left_out.fingerprints()
        return saved

    def capture_data(self, use: str, tensors: codec.Tensors) -> codec.Json:
        """Return the state that functions of the data ``train`` or ``validation`` reach."""
        return self._capture(self._holders_of(use), tensors)

    def restore_data(self, use: str, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        self._is_read_again = True
        self._restore(self._holders_of(use), saved, tensors)

    def _holders_of(self, use: str) -> list[Holder]:
        return [holder for holder in self._holders if _key(holder) in self._of_data[use]]

    def _settled(self) -> list[Holder]:
        """Return the holders, without those whose position is unknown, because threads read ahead."""
        ahead = set().union(*(self._ahead.get(use, set()) for use in self.in_flight()))
        return [holder for holder in self._holders if id(holder) not in ahead]

    def _capture(self, holders: list[Holder], tensors: codec.Tensors) -> dict[str, codec.Json]:
        exempt = self._roots.ids_exempt()
        encoder = UserEncoder(tensors, self.name, self._nodes, covered=self._covered, exempt=exempt)
        changed: dict[str, codec.Json] = {}
        for holder in holders:
            before = self._changed_before.get(holder.path)
            if (before is None and not holder.changed()) or id(holder.obj) in exempt:
                continue
            if isinstance(holder, Cache) and not self._reads_what_changed(holder):
                continue
            try:
                changed[holder.path] = encoder.holder(holder, before or {})
            except codec.NotPlainError as error:
                where = holder.path if isinstance(holder, Value) else error.path
                raise UncapturableError(
                    _cannot(self._roots, where, error.what, error.advice)
                ) from None
        return {"changed": changed}

    def _reads_what_changed(self, cache: Cache) -> bool:
        """Return whether a value that the cached function reaches has changed."""
        reached, used = self._behind[cache.path]
        for holder in self._holders:
            if _is_module(holder):
                initial = dict(zip(holder.keys, holder.values, strict=True))
                current = dict(zip(*holder.read(), strict=True))
                names = [name for name in current if (id(holder), name) in used]
                if not all(
                    codec.same(initial.get(name, codec.MISSING), current[name]) for name in names
                ):
                    return True
            elif holder is not cache and id(holder.obj) in reached and holder.changed():
                return True
        return False

    def mismatches(self, saved: codec.Json, tensors: Mapping[str, Any]) -> list[str]:
        if self._left_out is None or self._continues():
            # Callbacks create objects when training starts.
            return []
        by_path = {holder.path: holder for holder in self._walk.holders}
        misfits = []
        for path, node in saved["changed"].items():
            holder = by_path.get(path)
            if holder is None:
                misfits.append(f"{path} is in the checkpoint only")
            elif ("value" in node) is not isinstance(holder, Value):
                misfits.append(
                    f"{path} is another kind of object than when the checkpoint was written"
                )
            elif isinstance(holder, Value):
                try:
                    misfit = holder.mismatch(node["value"], tensors)
                except codec.UnplaceableError as error:
                    misfit = str(error)
                if misfit is not None:
                    misfits.append(f"{path} {misfit}")
        return misfits

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        if self._roots.earlier is not None:
            self._changed_before.update(saved["changed"])
        # Reading data again has put objects back that other code may use as well.
        if not self._continues() or self._is_read_again:
            self._restore(self._settled(), saved, tensors)

    def _restore(
        self, holders: list[Holder], saved: codec.Json, tensors: Mapping[str, Any]
    ) -> None:
        by_path = {holder.path: holder for holder in self._walk.holders}
        decoder = UserDecoder(tensors, self._walk.by_path)
        for holder in holders:
            if holder.path not in saved["changed"] and holder.changed():
                with _restoring(holder.path):
                    holder.reset()
        for path, node in saved["changed"].items():
            holder = by_path[path]
            with _restoring(path):
                if isinstance(holder, Value):
                    holder.restore(node["value"], tensors)
                elif isinstance(holder, Structure):
                    decoder.structure(holder, node)

    def _continues(self) -> bool:
        return self._roots.earlier is not None and self._roots.earlier.continued

    def created(self) -> dict[int, Any]:
        """Return the objects that this training and the earlier ones of this process have created, by identity."""
        walk = Walk(self._covered(), self._roots.ids_exempt())
        walk.visit(self._roots.given())
        return {key: node.obj for key, node in walk.nodes.items() if key not in self._nodes}


@contextmanager
def _restoring(path: str) -> Iterator[None]:
    """Context manager that raises a `RestoreError` for the object at ``path``."""
    try:
        yield
    except (codec.UnplaceableError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RestoreError(
            f"{path} cannot be restored from the checkpoint: {error}; the code has changed since "
            "it was written: undo the change, or train from the beginning"
        ) from error


def _is_unbuilt(obj: Any) -> bool:
    if isinstance(obj, keras.metrics.Metric):
        return not obj.variables
    return isinstance(obj, _OF_KERAS) and not obj.built


def _key(holder: Holder) -> int:
    """Return the walk's key of a holder: for a module's variables the holder, otherwise the object."""
    return id(holder) if _is_module(holder) else id(holder.obj)


def _is_module(holder: Holder) -> TypeGuard[MappingVariables]:
    return isinstance(holder, MappingVariables) and not holder.whole


def _variables_of(holders: Iterable[Holder]) -> dict[int, Variable]:
    """Return the holders of variables by the identities of TensorFlow's own."""
    by_id: dict[int, Variable] = {}
    for holder in holders:
        if isinstance(holder, Variable):
            variable = holder.obj
            inner = variable.value if isinstance(variable, keras.Variable) else variable
            by_id[id(inner)] = holder
    return by_id


def _cannot(roots: Roots, where: str, description: str, advice: str = "") -> str:
    other = _METHODS if where.startswith("callback ") else "" if advice else _MAKE_NEW
    return (
        f"{where} changed during training, and is {description}, which cannot be saved; "
        f"{advice or _KEEP}{other}{_EXEMPT if roots.output is not None else ''}"
    )


_MOST_READ = 2_000
"""Maximum number of recorded values of a traced function."""

_LEAVES = (bool, int, float, str, np.generic)


def _values_read(function: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    visited: set[int] = set()
    waiting: list[tuple[str, Any, frozenset[str]]] = [("", function, frozenset())]
    while waiting and len(values) < _MOST_READ:
        path, value, names = waiting.pop()
        if isinstance(value, _LEAVES):
            values[path] = value
            continue
        if value is None or id(value) in visited or isinstance(value, _UNREAD):
            continue
        visited.add(id(value))
        waiting += reversed(_inside(path, value, names))
    return values


_UNREAD = (
    type,
    ModuleType,
    keras.Model,
    keras.layers.Layer,
    keras.Variable,
    tf.Variable,
    tf.Tensor,
    np.ndarray,
)
"""Classes of values that a graph reads when it runs, or that are not compared."""


def _inside(path: str, value: Any, names: frozenset[str]) -> list[tuple[str, Any, frozenset[str]]]:
    """Return what a value holds that code with these ``names`` can read, with the names used there."""
    if isinstance(value, MethodType):
        function = value.__func__
        owner = value.__self__
        used_names = names_in(function) if isinstance(function, FunctionType) else frozenset()
        return [(path, function, used_names), (f"{path}self", owner, used_names)]
    if isinstance(value, FunctionType):
        used_names = names_in(value)
        read = (*closure_of(value), *globals_of(value))
        return (
            [(n, v, used_names) for n, v in read] if is_users_module(value.__module__ or "") else []
        )
    if isinstance(value, dict):
        return [(f"{path}[{k!r}]", v, names) for k, v in list(dict.items(value))[:_MOST_READ]]
    if isinstance(value, list | tuple):
        return [(f"{path}[{i}]", v, names) for i, v in enumerate(value[:_MOST_READ])]
    return [(f"{path}.{name}", v, names) for name, v in fields_of(value).items() if name in names]


_ATTRIBUTE = re.compile(r": attribute '(\w+)'$")
_SHORT = 40
_MOST_ELEMENTS = 64
"""Maximum length of a list whose elements have their own fingerprints."""


class LeftOut:
    """Attributes of callbacks with their own ``get_state``, which the ``walk`` from ``roots`` does not enter."""

    def __init__(self, walk: Walk, roots: Roots, covered: Callable[[], frozenset[int]]) -> None:
        keeping = roots.ids_exempt() - roots.ids_of_output()
        nodes = [
            walk.nodes.get(id(callback)) for callback in roots.callbacks if id(callback) in keeping
        ]
        self._own = [node for node in nodes if node is not None]
        self._others = walk
        self._roots = roots
        self._covered = covered
        self._initial = self._fingerprints()

    def fingerprints(self) -> codec.Json:
        """Return the name and fingerprint of each attribute, key and element that training changed."""
        current = self._fingerprints()
        return [
            [name, current.get(name, "missing")]
            for name in dict.fromkeys([*self._initial, *current])
            if self._initial.get(name) != current.get(name)
        ]

    def _fingerprints(self) -> dict[str, str]:
        return {} if not self._own else dict(self._all())

    def _all(self) -> Iterator[tuple[str, str]]:
        ids = {id(node.obj) for node in self._own}
        exempt = self._roots.ids_of_output() | (frozenset(self._others.nodes) - ids)
        walk = Walk(self._covered(), exempt)
        walk.visit([(ObjectPath(node.path), node.obj) for node in self._own])
        for module in walk.modules.values():
            watched = self._others.modules.get(module.path)
            for name in () if watched is None else watched.names:
                module.names.pop(name, None)
        for holder in walk.holders:
            # No result depends on what is written to a file, which may have times in it.
            if not isinstance(holder, WrittenFile | AppendedFile):
                yield from self._of(holder)

    def _of(self, holder: Holder) -> Iterator[tuple[str, str]]:
        path = holder.path
        if isinstance(holder.obj, set):
            yield path, self._text(sorted(map(self._leaf, set.__iter__(holder.obj))))
        elif isinstance(holder, Value):
            tensors: codec.Tensors = {}
            try:
                yield path, self._text(holder.capture(tensors, path), tensors)
            except codec.NotPlainError:
                # An open file, an iterator: it can be neither restored nor compared.
                return
        elif isinstance(holder, Structure):
            keys, values = holder.read()
            if holder.shape == NAMED:
                for name, value in zip(keys, values, strict=True):
                    yield from self._part(path_in(holder, name), value)
            elif holder.shape == KEYED and all(type(key) is str for key in keys):
                yield f"{path}.keys()", self._text(keys)
                for key, value in zip(keys, values, strict=True):
                    yield from self._part(f"{path}[{key!r}]", value)
            elif holder.shape == KEYED or len(values) > _MOST_ELEMENTS:
                yield path, self._text([*map(self._leaf, keys), *map(self._leaf, values)])
            else:
                yield from self._items(path, values)

    def _items(self, path: str, values: Any) -> Iterator[tuple[str, str]]:
        for index, value in enumerate(values):
            yield from self._part(f"{path}[{index}]", value)

    def _part(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        """Yield the fingerprint of a value without a holder; of another object only its kind."""
        yield path, "list" if type(value) is tuple else self._leaf(value)
        if isinstance(value, tuple):
            inner = _ATTRIBUTE.sub(r".\1", path)
            yield from self._items(inner, tuple.__iter__(value))

    def _leaf(self, value: Any) -> str:
        node = self._others.nodes.get(id(value))
        if node is not None:
            return node.path
        if isinstance(value, tuple | frozenset):
            return self._text([*map(self._leaf, value)])
        if not codec.is_json_leaf(value):
            return "list" if isinstance(value, list) else class_name(type(value))
        tensors: codec.Tensors = {}
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            return self._text(codec.encode(plain, "", tensors), tensors)
        except codec.NotPlainError:
            return class_name(type(value))

    def _text(self, node: codec.Json, tensors: codec.Tensors | None = None) -> str:
        """Return a short value as text, and the digest of another value."""
        plain = relocated(node, self._roots.directory, "…")
        if isinstance(plain, dict) and isinstance(plain.get("v"), str):
            plain = plain["v"]
        text = json.dumps(plain, sort_keys=True)
        if not isinstance(plain, list | dict) and len(text) <= _SHORT:
            return text
        digest = xxhash.xxh3_64(text.encode())
        for name in sorted(tensors or {}):
            array = np.asarray((tensors or {})[name])
            digest.update(f"{array.dtype} {array.shape}".encode())
            text = repr(array.tolist()) if array.dtype == object else ""
            digest.update(text.encode() or array.tobytes())
        return f"digest {digest.hexdigest()}"
