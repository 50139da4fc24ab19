"""Keras's process-wide settings, which a callback may set and ``clear_session()`` sets back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from sweeper.training.encoding import Json, Tensors

_ATTRIBUTES = ("global_random_seed", "flash_attention")
"""Of Keras's global state, as they are: numbers, booleans or None."""

_POLICY = "dtype_policy"


class KerasSettings:
    """Number formats, epsilon, layout of images, dtype policy, and the seed last set."""

    name = "keras_settings"

    def capture(self, tensors: Tensors) -> Json:
        from keras.src.backend.common import global_state

        del tensors
        # The attribute, not the setting: asking for that would create it.
        policy = global_state.get_global_attribute(_POLICY)
        return {
            "floatx": keras.config.floatx(),
            "epsilon": float(keras.config.epsilon()),
            "image_data_format": keras.config.image_data_format(),
            _POLICY: None if policy is None else keras.dtype_policies.serialize(policy),
            **{name: global_state.get_global_attribute(name) for name in _ATTRIBUTES},
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved, tensors
        return []

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

    def describe(self) -> str:
        return f"{keras.config.floatx()}, epsilon {keras.config.epsilon()}"
