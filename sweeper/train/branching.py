"""Start of a branch from another training's checkpoint, with other parameters.

The model is built twice, with the parent's parameters and with the branch's. A variable or attribute
whose initial values differ between the two builds holds a changed hyperparameter, and keeps the branch's
value: a scalar variable of an optimizer, a non-trainable variable of the model that training has not
changed, or an attribute. This also holds if training has changed the parent's value, such as a rate that
a callback lowered. Everything else comes from the checkpoint: weights, slots, counts, and the states of
generators, callbacks and data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import xxhash

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.train.codec import Tensors
from sweeper.train.codec.replicas import hold_replicas, replicas_of
from sweeper.train.loop.plan import TrainingPlan, roots_of
from sweeper.train.state.state import Component
from sweeper.train.state.variables import Reach, Variables
from sweeper.train.userstate import UserState
from sweeper.train.userstate.holders import Attributes

OPTIMIZERS = ("optimizer", "optimizers")
"""Components whose scalar variables are hyperparameters or counts."""


@dataclass(frozen=True)
class Initial:
    """The initial values of one build.

    Attributes:
        variables: Dtype, shape and digest of each variable, in order, by component; "" for a
            variable that is not a hyperparameter.
        attributes: Plain values as text, by the object's path and the attribute's name.
        held: The variables, in the same order; empty if they are in another process.
    """

    variables: Mapping[str, list[str]]
    attributes: Mapping[str, Mapping[str, str]]
    held: Mapping[str, list[Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, plan: TrainingPlan) -> Initial:
        """Return the initial values of the objects in ``plan``."""
        reach = Reach(plan.model, plan.step)
        held = {
            "model": list(plan.model.variables),
            "optimizer": list(reach.own_optimizer()),
            "optimizers": [each.value for each in reach.other_optimizers()],
            "reachable": [each.value for each in reach.loose()],
        }
        texts = {name: [_text(name, each) for each in listed] for name, listed in held.items()}
        return cls(texts, _attributes(plan, reach), held)

    def to_json(self) -> dict[str, Any]:
        """Return all but the variables themselves."""
        return {"variables": dict(self.variables), "attributes": dict(self.attributes)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Initial:
        """Return the inverse of `to_json`."""
        return cls(content["variables"], content["attributes"])


def text_of(array: Any) -> str:
    """Return an array's dtype and shape, and the digest of its values."""
    value = np.ascontiguousarray(array)
    return f"{value.dtype}{list(value.shape)} {xxhash.xxh3_128_hexdigest(value.tobytes())}"


def _text(component: str, variable: Any) -> str:
    """Return the text of a variable that may be a hyperparameter; "" for weights and slots."""
    if component in OPTIMIZERS:
        if tuple(variable.shape) != ():
            return ""
    elif getattr(variable, "trainable", True):
        return ""
    if isinstance(variable, keras.Variable) and variable._value is None:
        return ""
    return text_of(np.asarray(next(iter(replicas_of(variable))).read_value()))


def _attributes(plan: TrainingPlan, reach: Reach) -> dict[str, dict[str, str]]:
    """Return the plain attributes of all objects that the user's code reaches, except data."""
    bare = roots_of(plan, {"train": None, "validation": None})
    state = UserState(bare, reach.covered)
    found: dict[str, dict[str, str]] = {}
    for holder in state.walk.holders:
        if isinstance(holder, Attributes):
            plain = {
                str(name): f"{type(value).__name__} {value!r}"
                for name, value in zip(holder.keys, holder.values, strict=True)
                if value is None or type(value) in (bool, int, float, str)
            }
            if plain:
                found[holder.path] = plain
    return found


_STATE = "user_state"


@dataclass(frozen=True)
class BranchReport:
    """Report of a branch: values from its parent's checkpoint, and values from its own parameters.

    Attributes:
        taken: Paths of the variables with the parent's values.
        kept: Paths of the variables and attributes with values of changed parameters.
        state: Names of other components with the parent's state.
    """

    taken: tuple[str, ...]
    kept: tuple[str, ...]
    state: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"taken": list(self.taken), "kept": list(self.kept), "state": list(self.state)}

    def text(self, parent: int, step: int) -> str:
        """Return the report for the trial's log."""
        lines = [f"This trial begins at step {step} of trial {parent}."]
        lines += [f"  taken  {name}" for name in (*self.taken, *self.state)]
        lines += [f"  kept   {name} (from the changed parameters)" for name in self.kept]
        return "\n".join(lines)


def merged(
    loaded: LoadedCheckpoint,
    components: Sequence[Component],
    built: tuple[Initial, Initial] | None,
) -> tuple[LoadedCheckpoint, BranchReport]:
    """Return the initial state of the branch, and the report of its origin.

    Args:
        loaded: The parent's checkpoint.
        components: Components of the branch's training, whose variables all exist.
        built: Initial values with the parent's parameters and with the branch's; None if no parameter
            was changed.
    """
    tensors, state = dict(loaded.tensors), dict(loaded.state)
    taken: list[str] = []
    kept: list[str] = []
    for component in components:
        if not isinstance(component, Variables) or component.name not in loaded.state:
            continue
        new = {} if built is None else _differing(component.name, *built)
        for index, each in enumerate(component._labelled()):
            key = component._key(index)
            before = new.get(id(each.value))
            if before is not None and _is_kept(component.name, loaded, key, before):
                now: Tensors = {}
                hold_replicas(each.value, key, now)
                tensors.update({name: np.asarray(value) for name, value in now.items()})
                kept.append(each.path)
            elif component.name != "metrics":
                taken.append(each.path)
    if built is not None:
        state[_STATE], attributes = _without_parameters(state[_STATE], *built)
        kept += attributes
    others = [c.name for c in components if not isinstance(c, Variables) and c.name in state]
    report = BranchReport(tuple(taken), tuple(kept), tuple(others))
    return replace(loaded, tensors=tensors, state=state), report


def _differing(component: str, parent: Initial, own: Initial) -> dict[int, str]:
    """Return the parent's texts of the variables that differ between the two builds, by identity."""
    before, now = parent.variables.get(component, []), own.variables.get(component, [])
    if len(before) != len(now):
        return {}
    return {
        id(variable): was
        for was, is_now, variable in zip(before, now, own.held.get(component, []), strict=True)
        if was and is_now and was != is_now
    }


def _is_kept(component: str, loaded: LoadedCheckpoint, key: str, before: str) -> bool:
    """Return whether the new value is kept: in optimizers, or if training did not change the variable."""
    if component in OPTIMIZERS:
        return True
    saved = loaded.tensors.get(key)
    return saved is not None and text_of(saved) == before


def _without_parameters(
    saved: Mapping[str, Any], parent: Initial, own: Initial
) -> tuple[dict[str, Any], list[str]]:
    """Return the captured attributes without those of changed parameters, and the paths of these."""
    changed = dict(saved["changed"])
    kept = []
    for path, attributes in own.attributes.items():
        before = parent.attributes.get(path, {})
        names = [n for n, text in attributes.items() if n in before and before[n] != text]
        kept += [f"{path}.{name}" for name in names]
        node = changed.get(path)
        if names and isinstance(node, Mapping) and "set" in node:
            changed[path] = {
                **node,
                "set": {name: value for name, value in node["set"].items() if name not in names},
            }
    return {**saved, "changed": changed}, kept
