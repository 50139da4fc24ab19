"""What a freshly built training has, in a form that two processes can compare.

A model is built with the parent's parameters and with the branch's. What the two have otherwise comes
of the parameters that were changed; so a variable, or an attribute, is known to hold a hyperparameter
without anybody saying so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import xxhash

from sweeper.training.encoding.replicas import replicas_of
from sweeper.training.loop.plan import TrainingPlan
from sweeper.training.loop.roots import roots_of
from sweeper.training.state.reach import Found, Reach
from sweeper.training.userstate import UserState
from sweeper.training.userstate.holders.objects import Attributes

OPTIMIZERS = ("optimizer", "optimizers")
"""The components whose variables of one number hold hyperparameters, or counts."""


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
        """Look at what the factories made; nothing is run or changed."""
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
        """All but the variables themselves."""
        return {"variables": dict(self.variables), "attributes": dict(self.attributes)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Initial:
        """The inverse of `to_json`."""
        return cls(content["variables"], content["attributes"])


def text_of(array: Any) -> str:
    """An array's form, and the digest of its values."""
    value = np.ascontiguousarray(array)
    return f"{value.dtype}{list(value.shape)} {xxhash.xxh3_128_hexdigest(value.tobytes())}"


def _values(found: list[Found]) -> list[Any]:
    return [each.value for each in found]


def _text(component: str, variable: Any) -> str:
    """The text of what may hold a hyperparameter: no weight that is trained, and no slot."""
    if component in OPTIMIZERS:
        if tuple(variable.shape) != ():
            return ""
    elif getattr(variable, "trainable", True):
        return ""
    if isinstance(variable, keras.Variable) and variable._value is None:
        return ""
    return text_of(np.asarray(next(iter(replicas_of(variable))).read_value()))


def _attributes(plan: TrainingPlan, reach: Reach) -> dict[str, dict[str, str]]:
    """The plain attributes of everything that the user's code reaches, data aside."""
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
