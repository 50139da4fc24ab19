"""Parts that must not be replaced during training, and Keras's global settings.

A traced step continues to use the objects of its trace, and a checkpoint identifies variables by their
position in Keras's lists. A resumed process has only the objects that the factory creates. So a model
that is compiled again, a schedule in place of a number, or a variable that is added during training is
refused by name at the next checkpoint. A step that runs eagerly creates variables when it first runs,
so its parts are recorded then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import UncapturableError
from sweeper.inspection.sorts import class_name
from sweeper.train.codec import Json, Tensors
from sweeper.train.component import Component
from sweeper.train.state.variables import Reach, path_of

_ATTRIBUTES = ("global_random_seed", "flash_attention")
"""Names of Keras's global settings with plain values."""

_POLICY = "dtype_policy"


class KerasSettings(Component):
    """Component of Keras's number format, epsilon, image layout, dtype policy and last seed."""

    name = "keras_settings"

    def capture(self, tensors: Tensors) -> Json:
        from keras.src.backend.common import global_state

        del tensors
        # Reading the setting instead of the attribute would create it.
        policy = global_state.get_global_attribute(_POLICY)
        return {
            "floatx": keras.config.floatx(),
            "epsilon": float(keras.config.epsilon()),
            "image_data_format": keras.config.image_data_format(),
            _POLICY: None if policy is None else keras.dtype_policies.serialize(policy),
            **{name: global_state.get_global_attribute(name) for name in _ATTRIBUTES},
        }

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        from keras.src.backend.common import global_state

        if saved == self.capture({}):
            return
        del tensors
        keras.config.set_floatx(saved["floatx"])
        keras.config.set_epsilon(saved["epsilon"])
        keras.config.set_image_data_format(saved["image_data_format"])
        policy = saved[_POLICY]
        global_state.set_global_attribute(
            _POLICY, None if policy is None else keras.dtype_policies.deserialize(policy)
        )
        for name in _ATTRIBUTES:
            global_state.set_global_attribute(name, saved[name])


_TWO_PHASES = (
    "for a training in two phases, make both in the factory: two optimizers of which the step "
    "uses one, or rates and `trainable` flags that a callback changes"
)


class FixedParts(Component):
    """Component of the classes of parts that must not be replaced during training."""

    name = "parts"

    def __init__(self, model: keras.Model, reach: Reach) -> None:
        self._model = model
        self._reach = reach
        self._parts: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}
        self._unbuilt: list[Any] = []

    def begin(self) -> None:
        # `UserState` captures objects that become reachable later.
        self._reach.begin()

    def settle(self) -> None:
        # The parts must not be replaced from now on.
        self._reach.settle()
        self._parts, self._lists = self._now(), self._variables()
        self._unbuilt = [optimizer for _, optimizer in self._optimizers() if not optimizer.built]

    def capture(self, tensors: Tensors) -> Json:
        """Return the classes of the parts; refuse one that was replaced."""
        del tensors
        if self._lists:
            if self._unbuilt and any(o.built for o in self._unbuilt):
                # An eager step builds an optimizer when it first uses it.
                self.settle()
            self._check()
        parts = {name: _shown(part) for name, part in self._now().items()}
        return {"parts": parts, "built": self._built_on()}

    def _built_on(self) -> dict[str, Json]:
        """Return the positions of each optimizer's trained variables in the model's; None if not built."""
        indices = {id(variable): index for index, variable in enumerate(self._model.variables)}
        found: dict[str, Json] = {}
        for name, optimizer in self._optimizers():
            trained = getattr(optimizer, "_trainable_variables", None) if optimizer.built else None
            listed = [indices.get(id(variable)) for variable in trained or ()]
            found[name] = listed if trained and None not in listed else None
        return found

    def _optimizers(self) -> list[tuple[str, Any]]:
        return [(each.path, each.value) for each in self._reach.now.optimizers]

    def build(self, saved: Json) -> None:
        """Build the optimizers that a step had built when the checkpoint was written."""
        variables = self._model.variables
        for name, optimizer in self._optimizers():
            indices = saved["built"].get(name)
            if indices is not None and not optimizer.built and max(indices) < len(variables):
                optimizer.build([variables[index] for index in indices])
                if self._lists:
                    self.settle()

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        now = {name: _shown(part) for name, part in self._now().items()}
        was = saved["parts"]
        return [
            f"{name} was {was[name]} when the checkpoint was written, and is {shown} now"
            for name, shown in now.items()
            if was.get(name, shown) != shown
        ]

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Do nothing: classes cannot be restored."""
        del saved, tensors

    def _check(self) -> None:
        for name, part in self._now().items():
            if part is not self._parts[name]:
                self._refuse(name, self._parts[name], part)
        for name, variables in self._variables().items():
            was = self._lists[name]
            if len(was) != len(variables) or any(
                a is not b for a, b in zip(was, variables, strict=True)
            ):
                self._refuse_variables(name, was, variables)

    def _now(self) -> dict[str, Any]:
        model, optimizer = self._model, self._model.optimizer
        return {
            "model.optimizer": optimizer,
            "model.optimizer.learning_rate": getattr(optimizer, "_learning_rate", None),
            "what the model was compiled with": getattr(model, "_compile_metrics", None),
            "model.train_function": model.train_function,
            "model.run_eagerly": bool(model.run_eagerly),
            "model.distribute_strategy": model.distribute_strategy,
        }

    def _variables(self) -> dict[str, list[Any]]:
        model, optimizer = self._model, self._model.optimizer
        return {
            "model": list(model.variables),
            "optimizer": [] if optimizer is None else list(optimizer.variables),
            "metrics": list(model.metrics_variables),
        }

    def _refuse(self, name: str, was: Any, now: Any) -> None:
        msg = (
            f"{name} was replaced during training: it was {_shown(was)}, and is "
            f"{'another' if _shown(was) == _shown(now) else _shown(now)} now. The traced step "
            "still uses the first, and a resumed trial would use the factory's; compile the "
            f"model once, and change values instead; {_TWO_PHASES}"
        )
        raise UncapturableError(msg)

    def _refuse_variables(self, name: str, was: Sequence[Any], now: Sequence[Any]) -> None:
        known, present = {id(v) for v in was}, {id(v) for v in now}
        added = [repr(path_of(v)) for v in now if id(v) not in known]
        gone = [repr(path_of(v)) for v in was if id(v) not in present]
        how = (
            f"gained {added[0]}" if added else f"lost {gone[0]}" if gone else "changed their order"
        )
        more = max(len(added or gone) - 1, 0)
        msg = (
            f"the {name}'s variables {how}{f' and {more} more' if more else ''} during training, so "
            "a checkpoint would not fit the model that the factory makes; make all variables in the "
            f"factory or in build(), before training; {_TWO_PHASES}"
        )
        raise UncapturableError(msg)


def _shown(part: Any) -> str:
    if part is None or isinstance(part, bool):
        return repr(part)
    if isinstance(part, tf.distribute.Strategy):
        return f"a {type(part).__name__} of {part.num_replicas_in_sync} replicas"
    return f"a {class_name(type(part))}"
