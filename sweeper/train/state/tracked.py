"""Objects that the user registered with ``Trial.track``, captured and restored by name."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from sweeper.errors import RestoreError, UncapturableError
from sweeper.inspection.sorts import class_name, framework_variables, is_variable
from sweeper.train.codec import (
    TAG,
    Decoder,
    Encoder,
    Json,
    NotPlainError,
    Tensors,
    UnplaceableError,
    assign_replicas,
    hold_replicas,
    tells_its_state,
)
from sweeper.train.codec.form import form_of
from sweeper.train.state.variables import Reach
from sweeper.train.userstate.values import Generator


class Tracked:
    """Component of the objects registered with ``Trial.track``, by name."""

    name = "tracked"

    def __init__(self, objects: Mapping[str, Any], reach: Reach) -> None:
        self._objects = dict(objects)
        self._reach = reach
        for name, value in self._objects.items():
            check_trackable(name, value)

    def capture(self, tensors: Tensors) -> Json:
        encoder = Encoder(tensors)
        saved: dict[str, Json] = {}
        paths: dict[int, str] = {}
        for name, value in self._objects.items():
            path = f"{self.name}/{name}"
            known = paths.setdefault(id(value), path)
            if _has_own_state(value):
                try:
                    saved[name] = encoder.encode(value.get_state(), path)
                except NotPlainError as error:
                    msg = f"the tracked object {name!r}: {error}, which cannot be saved"
                    raise UncapturableError(msg) from None
            elif known != path:
                saved[name] = {TAG: "same", "as": known}
            elif framework_variables(value) is None:
                state = Generator(value, path).capture(tensors, f"{path}/state")
                saved[name] = {TAG: type(value).__name__, "v": state}
            else:
                saved[name] = self._put_variables(value, path, tensors)
        return saved

    def _put_variables(self, value: Any, path: str, tensors: Tensors) -> Json:
        own = self._own_variables(value)
        one = is_variable(value)
        keys = [path if one else f"{path}/{i:05d}" for i in range(len(own))]
        for key, variable in zip(keys, own, strict=True):
            hold_replicas(variable, key, tensors)
        if one:
            return {TAG: "variable", "t": path} if own else {TAG: "constant"}
        return {TAG: "variables", "class": class_name(type(value)), "v": keys}

    def _own_variables(self, value: Any) -> list[Any]:
        """Return the variables of ``value`` that no other component captures."""
        covered = self._reach.covered()
        return [v for v in framework_variables(value) or () if id(v) not in covered]

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        found = [f"the tracked object {n!r} is not in it" for n in self._objects if n not in saved]
        for name, node in saved.items():
            if name not in self._objects:
                found.append(f"it has an unexpected tracked object {name!r}")
                continue
            try:
                self._bring_back(name, node, tensors, Decoder(tensors), dry=True)
            except UnplaceableError as error:
                found.append(str(error))
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        decoder = Decoder(tensors)
        for name in self._objects:
            self._bring_back(name, saved[name], tensors, decoder)

    def _bring_back(
        self,
        name: str,
        node: Json,
        tensors: Mapping[str, Any],
        decoder: Decoder,
        *,
        dry: bool = False,
    ) -> None:
        """Restore the object's state; when ``dry``, only check that it fits."""
        value, path = self._objects[name], f"{self.name}/{name}"
        if _has_own_state(value):
            state = decoder.decode(node)
            if not dry:
                value.set_state(state)
            return
        if not isinstance(node, dict):
            msg = f"the tracked object {name!r} has no state in the checkpoint"
            raise RestoreError(msg)
        if node[TAG] in ("same", "constant"):
            return
        if node[TAG] not in ("variable", "variables"):
            if type(value).__name__ != node[TAG]:
                msg = f"{path} was a {node[TAG]}, and is a {class_name(type(value))} now"
                raise UnplaceableError(msg)
            decoder.decode(node)
            if not dry:
                Generator(value, path).restore(node["v"], tensors)
            return
        keys = [node["t"]] if node[TAG] == "variable" else node["v"]
        own = self._own_variables(value)
        if len(own) != len(keys):
            msg = (
                f"{path} was a {node.get('class', 'variable')} with {len(keys)} variables, and is "
                f"{class_name(type(value))} with {len(own)} now"
            )
            raise UnplaceableError(msg)
        for index, (variable, key) in enumerate(zip(own, keys, strict=True)):
            where = path if node[TAG] == "variable" else f"{path}/{index}"
            _assign(variable, tensors, key, where, dry=dry)


def check_trackable(name: str, value: object) -> None:
    """Refuse an object whose state cannot be restored.

    Raises:
        UncapturableError: ``value`` is of none of the kinds that can be tracked.
    """
    if (
        framework_variables(value) is not None
        or _has_own_state(value)
        or isinstance(value, np.random.Generator)
        or type(value) in (random.Random, np.random.RandomState)
    ):
        return
    msg = (
        f"track({name!r}, …) was given a {class_name(type(value))}, whose value cannot be "
        "restored; give a tf.Variable, a tf.random.Generator, a Keras layer, optimizer, metric "
        "or SeedGenerator, a NumPy Generator, or an object with get_state() and set_state(state) "
        "(for a counter: tf.Variable(0, trainable=False))"
    )
    raise UncapturableError(msg)


def _has_own_state(value: object) -> bool:
    return (
        framework_variables(value) is None
        and not isinstance(value, np.random.RandomState)
        and tells_its_state(value)
    )


def _assign(variable: Any, tensors: Mapping[str, Any], key: str, path: str, *, dry: bool) -> None:
    if key not in tensors:
        msg = f"the tensor {key!r} is missing"
        raise UnplaceableError(msg)
    was, now = form_of(tensors[key]), form_of(variable)
    if was != now:
        msg = f"{path} was a variable, {was}, and is {now} now"
        raise UnplaceableError(msg)
    if not dry:
        assign_replicas(variable, key, tensors)
