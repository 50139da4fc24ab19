"""A parent's checkpoint, with what holds the branch's own parameters put in place of the parent's.

Weights, slots, counts, the states of generators, callbacks and data come from the checkpoint. A value
that is another one in a fresh build with the branch's parameters than in one with the parent's is a
hyperparameter, and the branch's is kept: a variable of one number in an optimizer, an untrained
variable of the model that training has left as it was, an attribute. What training made of the
parent's value (a rate that a callback lowered) belongs to the parent's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.training.branching.initial import OPTIMIZERS, Initial, text_of
from sweeper.training.encoding import Tensors
from sweeper.training.encoding.replicas import hold_replicas
from sweeper.training.state.state import Component
from sweeper.training.state.variables import Variables

_STATE = "user_state"


@dataclass(frozen=True)
class BranchReport:
    """What of a parent's checkpoint a branch takes, and what it keeps as it is built.

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
        """For the trial's log."""
        lines = [f"This trial begins at step {step} of trial {parent}."]
        lines += [f"  taken  {name}" for name in (*self.taken, *self.state)]
        lines += [f"  kept   {name} (as the changed parameters make it)" for name in self.kept]
        return "\n".join(lines)


def merged(
    loaded: LoadedCheckpoint,
    components: Sequence[Component],
    built: tuple[Initial, Initial] | None,
) -> tuple[LoadedCheckpoint, BranchReport]:
    """What the branch goes on from, and what that is made of.

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
    """The variables that begin otherwise in the two builds: by identity, the parent's text."""
    before, now = parent.variables.get(component, []), own.variables.get(component, [])
    if len(before) != len(now):
        return {}
    return {
        id(variable): was
        for was, is_now, variable in zip(before, now, own.held.get(component, []), strict=True)
        if was and is_now and was != is_now
    }


def _is_kept(component: str, loaded: LoadedCheckpoint, key: str, before: str) -> bool:
    """Whether the new value stays: elsewhere than in an optimizer, if training left the old one."""
    if component in OPTIMIZERS:
        return True
    saved = loaded.tensors.get(key)
    return saved is not None and text_of(saved) == before


def _without_parameters(
    saved: Mapping[str, Any], parent: Initial, own: Initial
) -> tuple[dict[str, Any], list[str]]:
    """The captured attributes without those that hold changed parameters, and all of these."""
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
