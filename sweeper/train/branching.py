"""Start of a branch from another training's checkpoint, with other parameters.

Weights, slots, counts, the states of generators, callbacks and data come from the checkpoint. A value
that is another one in a fresh build with the branch's parameters than in one with the parent's is a
hyperparameter, and the branch's is kept: a variable of one number in an optimizer, an untrained
variable of the model that training has left as it was, an attribute. What training made of the
parent's value (a rate that a callback lowered) belongs to the parent's value.

A model is built with the parent's parameters and with the branch's. What the two have otherwise comes
of the parameters that were changed; so a variable, or an attribute, is known to hold a hyperparameter
without anybody saying so.
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
from sweeper.train.state.variables import Found, Reach, Variables
from sweeper.train.userstate import UserState
from sweeper.train.userstate.holders import Attributes

OPTIMIZERS = ("optimizer", "optimizers")
"""Components whose scalar variables are hyperparameters or counts."""


@dataclass(frozen=True)
class Initial:
    """The initial values of one build.

    Attributes:
        variables: By component, in order: each variable's form and the digest of its value, or ""
            for one that no hyperparameter is in.
        attributes: By an object's path and an attribute's name: its plain value, as text.
        held: The variables themselves, in the same order; empty where they are of another process.
    """

    variables: Mapping[str, list[str]]
    attributes: Mapping[str, Mapping[str, str]]
    held: Mapping[str, list[Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, plan: TrainingPlan) -> Initial:
        """Return the initial values of the factories' objects, without running or changing anything."""
        reach = Reach(plan.model, plan.step)
        held = {
            "model": list(plan.model.variables),
            "optimizer": list(reach.own_optimizer()),
            "optimizers": _values(reach.other_optimizers()),
            "reachable": _values(reach.loose()),
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


def _values(found: list[Found]) -> list[Any]:
    return [each.value for each in found]


def _text(component: str, variable: Any) -> str:
    """Return the text of a value that may be a hyperparameter; none for weights and slots."""
    if component in OPTIMIZERS:
        if tuple(variable.shape) != ():
            return ""
    elif getattr(variable, "trainable", True):
        return ""
    if isinstance(variable, keras.Variable) and variable._value is None:
        return ""
    return text_of(np.asarray(next(iter(replicas_of(variable))).read_value()))


def _attributes(plan: TrainingPlan, reach: Reach) -> dict[str, dict[str, str]]:
    """Return the plain attributes of all objects that the user's code reaches, except for data."""
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
        taken: The variables that have the parent's values, by their paths.
        kept: The variables and attributes that hold changed parameters, and keep their new values.
        state: The other parts of the checkpoint that are taken: positions, generators, callbacks.
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
    """Return the state with which the branch begins, and the report of its origin.

    Args:
        loaded: The parent's checkpoint.
        components: Of the branch's training, whose variables are all there.
        built: A fresh build with the parent's parameters, and the branch's own; None where no
            parameter was changed, so that all is taken.
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
    """Return the variables that differ between the two builds, with the parent's text by identity."""
    before, now = parent.variables.get(component, []), own.variables.get(component, [])
    if len(before) != len(now):
        return {}
    return {
        id(variable): was
        for was, is_now, variable in zip(before, now, own.held.get(component, []), strict=True)
        if was and is_now and was != is_now
    }


def _is_kept(component: str, loaded: LoadedCheckpoint, key: str, before: str) -> bool:
    """Return whether the new value is kept; outside of optimizers, only if training did not change it."""
    if component in OPTIMIZERS:
        return True
    saved = loaded.tensors.get(key)
    return saved is not None and text_of(saved) == before


def _without_parameters(
    saved: Mapping[str, Any], parent: Initial, own: Initial
) -> tuple[dict[str, Any], list[str]]:
    """Return the captured attributes without those with changed parameters, and the latter."""
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
