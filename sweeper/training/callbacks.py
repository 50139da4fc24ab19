"""What each callback carries from step to step, captured without pickle and restored exactly.

A callback's state is found in one of three ways, in this order:

1. ``get_state()`` and ``set_state(state)`` of the callback, where it has both;
2. a `keras.callbacks` class: the attributes that its code changes (`BUILT_INS`), and any other plain
   one that has changed since training began;
3. all its attributes and what its methods keep in closures, where each attribute has a plain form.

A subclass of one of Keras's is seen both ways. A callback that fits none is refused before training,
by its name and the attribute's. Restoring comes after ``on_train_begin``, which resets most of
Keras's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from sweeper.errors import RestoreError, UncapturableError
from sweeper.training.built_ins import BUILT_INS, REFUSED, BuiltIn, base_of
from sweeper.training.csv_files import cut_back, forget_start, remember_start, size_of
from sweeper.training.encoding import (
    Decoder,
    Encoder,
    Json,
    NotPlainError,
    Origins,
    Tensors,
    UnplaceableError,
    fingerprint,
)
from sweeper.training.encoding.kinds import assigned_by, is_code, is_library_class

__all__ = ["BUILT_INS", "REFUSED", "BuiltIn", "CallbackStates", "listens_to_batches"]

_SET_BY_KERAS = frozenset({"_model", "params", "validation_data", "monitor_op"})
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


def listens_to_batches(callbacks: Iterable[keras.callbacks.Callback], *, test: bool) -> bool:
    """Whether any callback overrides a hook of single batches (of test batches with ``test``).

    Where none does, several steps can run in one graph call, and nobody can tell.
    """
    hooks = _TEST_HOOKS if test else _BATCH_HOOKS
    base = keras.callbacks.Callback
    for callback in callbacks:
        if _waits_for_the_epoch(callback):
            continue
        for hook in hooks:
            method = getattr(callback, hook)
            if getattr(method, "__func__", method) is not getattr(base, hook):
                return True
    return False


def _waits_for_the_epoch(callback: keras.callbacks.Callback) -> bool:
    """A ModelCheckpoint that saves by epochs overrides a batch hook that then does nothing."""
    return type(callback) is keras.callbacks.ModelCheckpoint and callback.save_freq == "epoch"


class CallbackStates:
    """The callbacks' component of a training's state.

    Args:
        callbacks: The user's callbacks, in their order.
        covered: Gives the ids of the variables that other components capture.

    Raises:
        UncapturableError: A callback that no checkpoint could bring back.
    """

    name = "callbacks"

    def __init__(
        self,
        callbacks: Iterable[keras.callbacks.Callback],
        covered: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._callbacks = tuple(callbacks)
        self._covered = covered
        self._origins = Origins()
        self._began: dict[str, str | None] | None = None
        """Fingerprints of settings as training began, by path; None where there is none."""
        self._named = {id(c): f"callback {i}" for i, c in enumerate(self._callbacks)}
        for callback in self._callbacks:
            _refuse(callback)

    def capture(self, tensors: Tensors) -> Json:
        self._remember()
        encoder = self._encoder(tensors)
        saved = [self._capture(i, c, encoder) for i, c in enumerate(self._callbacks)]
        self._origins.known = True
        return saved

    def _encoder(self, tensors: Tensors) -> Encoder:
        return Encoder(tensors, self._origins, named=self._named, covered=self._covered())

    def _capture(self, index: int, callback: keras.callbacks.Callback, encoder: Encoder) -> Json:
        path = f"{self.name}/{index}"
        saved: dict[str, Json] = {"class": _name(callback)}
        if _has_own_state(callback):
            try:
                saved["state"] = encoder.encode(callback.get_state(), f"{path}/state")
            except NotPlainError as error:
                msg = (
                    f"callback {_name(callback)}: get_state() returned something that a checkpoint "
                    f"cannot hold: {error}; return numbers, strings, arrays and containers of these"
                )
                raise UncapturableError(msg) from None
            return saved
        if getattr(callback, "_ema_weights_in_model", False) is True:
            msg = (
                f"callback {_name(callback)} has the averaged weights in the model here, and "
                "swapping them back is not exact; swap them back before the step or epoch ends"
            )
            raise UncapturableError(msg)
        values: dict[str, Json] = {}
        changing, own, settings = _attributes(callback)
        for name in (*changing, *own):
            values[name] = self._encode(callback, name, path, encoder, copy=name in own)
        for name in settings:
            if self._has_changed(callback, name, path):
                values[name] = self._encode(callback, name, path, encoder, copy=True)
        saved["attributes"] = values
        saved["methods"] = {
            name: self._encode(callback, name, path, encoder, copy=True, value=method)
            for name, method in _methods(callback)
        }
        if getattr(callback, "monitor_op", None) is not None:
            saved["compares"] = True
        if isinstance(callback, keras.callbacks.CSVLogger):
            saved["file_size"] = size_of(callback)
        return saved

    def _encode(
        self,
        callback: keras.callbacks.Callback,
        name: str,
        path: str,
        encoder: Encoder,
        *,
        copy: bool,
        value: Any = None,
    ) -> Json:
        where = f"{path}/{name}"
        try:
            return encoder.encode(
                getattr(callback, name) if value is None else value, where, copy=copy
            )
        except NotPlainError as error:
            inside = error.path.removeprefix(where).lstrip("/")
            raise UncapturableError(_cannot(callback, name, inside, error.what)) from None

    def _remember(self) -> None:
        """Note the callbacks' settings as they are when training begins or goes on."""
        if self._began is not None:
            return
        self._began = {}
        for index, callback in enumerate(self._callbacks):
            if not _has_own_state(callback):
                for name in _attributes(callback)[2]:
                    path = f"{self.name}/{index}/{name}"
                    self._began[path] = self._fingerprint(getattr(callback, name), path)

    def _fingerprint(self, value: Any, path: str) -> str | None:
        encoder = self._encoder({})
        try:
            if not self._origins.known:
                encoder.encode(value, path, copy=False)
            return fingerprint(value, path, encoder)
        except NotPlainError:
            return None

    def _has_changed(self, callback: keras.callbacks.Callback, name: str, path: str) -> bool:
        where = f"{path}/{name}"
        now = self._fingerprint(getattr(callback, name), where)
        # A setting with no fingerprint is encoded as well: that refuses it, by its name.
        return now is None or now != (self._began or {}).get(where)

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        was = [entry["class"] for entry in saved]
        now = [_name(callback) for callback in self._callbacks]
        if was != now:
            return [f"callbacks: the checkpoint has {was}, and the study makes {now}"]
        found = []
        for index, (callback, entry) in enumerate(zip(self._callbacks, saved, strict=True)):
            if ("state" in entry) != _has_own_state(callback):
                found.append(f"callback {_name(callback)} gained or lost get_state and set_state")
                continue
            missing = [key for key in _tensor_names(entry) if key not in tensors]
            found += [
                f"callback {_name(callback)}: the tensor {key!r} is missing" for key in missing
            ]
            if not missing and self._began is not None:
                found += self._unplaceable(index, callback, entry, tensors)
        return found

    def _unplaceable(
        self,
        index: int,
        callback: keras.callbacks.Callback,
        entry: Json,
        tensors: Mapping[str, Any],
    ) -> list[str]:
        found = []
        decoder = self._decoder(tensors, dry=True)
        for name, node, fresh in _places(callback, entry):
            try:
                decoder.decode(node, f"{self.name}/{index}/{name}", fresh)
            except UnplaceableError as error:
                found.append(f"callback {_name(callback)}, {name!r}: {error}")
        return found

    def _decoder(self, tensors: Mapping[str, Any], *, dry: bool = False) -> Decoder:
        named = {label: c for c, label in zip(self._callbacks, self._named.values(), strict=True)}
        return Decoder(tensors, self._origins, named=named, covered=self._covered(), dry=dry)

    def before_train_begin(self, saved: Json | None) -> None:
        """Prepare what ``on_train_begin`` would destroy: a CSVLogger truncates its file there.

        Args:
            saved: What `capture` returned, or None when the training begins anew.
        """
        for index, callback in enumerate(self._callbacks):
            if isinstance(callback, keras.callbacks.CSVLogger):
                if saved is None:
                    remember_start(callback)
                elif "file_size" in saved[index]:
                    cut_back(callback, saved[index]["file_size"])

    def after_train_begin(self) -> None:
        """The callbacks have been reset; what they are now is what a fresh training has."""
        self._remember()

    def after_train_end(self) -> None:
        """The training is over, and nothing will be restored into it."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                forget_start(callback)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._remember()
        decoder = self._decoder(tensors)
        for index, (callback, entry) in enumerate(zip(self._callbacks, saved, strict=True)):
            path = f"{self.name}/{index}"
            if "state" in entry:
                callback.set_state(decoder.decode(entry["state"], f"{path}/state"))
                continue
            if entry.get("compares") and callback.monitor_op is None:
                # Chosen at an epoch's end; a ModelCheckpoint can need it before the next one.
                callback._set_monitor_op()
            own = _attributes(callback)[1]
            for name in own:
                if name not in entry["attributes"]:
                    delattr(callback, name)
            for name, node, fresh in _places(callback, entry):
                try:
                    restored = decoder.decode(node, f"{path}/{name}", fresh)
                except UnplaceableError as error:
                    msg = f"callback {_name(callback)}, {name!r}: {error}"
                    raise RestoreError(msg) from None
                if name in entry["attributes"]:
                    setattr(callback, name, restored)
        self._origins.known = True

    def describe(self) -> str:
        return ", ".join(map(_name, self._callbacks)) or "none"


def _refuse(callback: keras.callbacks.Callback) -> None:
    for refused, reason in REFUSED.items():
        if isinstance(callback, refused):
            msg = f"callback {type(callback).__name__} cannot be used: {reason}"
            raise UncapturableError(msg)
    if isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch:
        msg = (
            "callback SwapEMAWeights(swap_on_epoch=True) leaves the averaged weights in "
            "the model at an epoch's end, when the checkpoint is taken, and swapping back "
            "is not exact; use swap_on_epoch=False"
        )
        raise UncapturableError(msg)


def _name(callback: keras.callbacks.Callback) -> str:
    return type(callback).__qualname__


def _has_own_state(callback: keras.callbacks.Callback) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


def _attributes(
    callback: keras.callbacks.Callback,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of what Keras's code changes, of what the user's code has, and of Keras's settings."""
    base = base_of(callback)
    names = [name for name in vars(callback) if name not in _SET_BY_KERAS]
    if base is None:
        return (), tuple(names), ()
    known = BUILT_INS[base]
    changing = tuple(name for name in known.attributes if hasattr(callback, name))
    keras_own = assigned_by(base, library=True)
    user_own = assigned_by(type(callback), library=False)
    own: list[str] = []
    settings: list[str] = []
    for name in names:
        if name in (*known.attributes, *known.handles):
            continue
        (own if name not in keras_own or name in user_own else settings).append(name)
    return changing, tuple(own), tuple(settings)


def _methods(callback: keras.callbacks.Callback) -> list[tuple[str, Any]]:
    """The functions of the user's own classes, for what they keep in closures and globals."""
    found = []
    for cls in type(callback).__mro__:
        if is_library_class(cls):
            continue
        for name, member in vars(cls).items():
            for part in (member, getattr(member, "fget", None), getattr(member, "fset", None)):
                function = getattr(part, "__func__", part)
                if is_code(function):
                    found.append((f"{cls.__name__}.{name}", function))
    return found


def _places(callback: keras.callbacks.Callback, entry: Json) -> list[tuple[str, Json, Any]]:
    """Each saved node with its name, and what stands in its place in the callback."""
    if "state" in entry:
        return []
    attributes = entry["attributes"].items()
    methods = dict(_methods(callback))
    return [
        *((name, node, getattr(callback, name, None)) for name, node in attributes),
        *((name, node, methods.get(name)) for name, node in entry["methods"].items()),
    ]


def _tensor_names(node: Json) -> list[str]:
    if isinstance(node, dict):
        own = [node["t"]] if isinstance(node.get("t"), str) else []
        if node.get("!") == "variables":
            return [*own, *node["v"]]
        return own + [key for value in node.values() for key in _tensor_names(value)]
    if isinstance(node, list):
        return [key for value in node for key in _tensor_names(value)]
    return []


def _cannot(callback: keras.callbacks.Callback, attribute: str, inside: str, what: str) -> str:
    name = _name(callback)
    where = f"attribute {attribute!r} is {what}"
    if inside:
        where = f"attribute {attribute!r} holds, at {inside}, {what}"
    return (
        f"callback {name}: {where}, which a checkpoint cannot hold, so a "
        f"resumed trial would go on with a fresh one; give {name} two methods, get_state(self), "
        "which returns plain values, arrays or containers of these, and set_state(self, state), "
        "which takes them back"
    )
