"""Settings of libraries that hold for a whole process and on which a training depends."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Setting(NamedTuple):
    """A setting: functions that read it, as plain data, and change it; they do not start TensorFlow."""

    read: Callable[[], Any]
    change: Callable[[Any], object]


def _enable_flash_attention(enabled: bool | None) -> None:
    if enabled is not None:
        (keras.config.enable_flash_attention if enabled else keras.config.disable_flash_attention)()


OF_KERAS = {
    "keras.config.floatx()": Setting(keras.config.floatx, keras.config.set_floatx),
    "keras.config.epsilon()": Setting(keras.config.epsilon, keras.config.set_epsilon),
    "keras.config.image_data_format()": Setting(
        keras.config.image_data_format, keras.config.set_image_data_format
    ),
    "keras.config.dtype_policy()": Setting(
        lambda: keras.config.dtype_policy().name, keras.config.set_dtype_policy
    ),
    "keras.config.is_flash_attention_enabled()": Setting(
        keras.config.is_flash_attention_enabled, _enable_flash_attention
    ),
}
"""Settings of Keras, by the text that reads them; a checkpoint has them."""

SETTINGS = {
    **OF_KERAS,
    "tf.config.functions_run_eagerly()": Setting(
        tf.config.functions_run_eagerly, tf.config.run_functions_eagerly
    ),
    "tf.config.optimizer.get_jit()": Setting(
        tf.config.optimizer.get_jit, tf.config.optimizer.set_jit
    ),
    "tf.config.optimizer.get_experimental_options()": Setting(
        tf.config.optimizer.get_experimental_options, tf.config.optimizer.set_experimental_options
    ),
    "tf.config.get_soft_device_placement()": Setting(
        tf.config.get_soft_device_placement, tf.config.set_soft_device_placement
    ),
    "tf.config.experimental.tensor_float_32_execution_enabled()": Setting(
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    "numpy.geterr()": Setting(np.geterr, lambda kinds: np.seterr(**kinds)),
}
"""All of them, by the text that reads them."""

_DEFAULTS = {
    "keras.config.floatx()": "float32",
    "keras.config.epsilon()": 1e-7,
    "keras.config.image_data_format()": "channels_last",
    "keras.config.dtype_policy()": "float32",
    "keras.config.is_flash_attention_enabled()": None,
    "tf.config.functions_run_eagerly()": False,
    "tf.config.optimizer.get_jit()": "",
}


def changed_settings() -> dict[str, Any]:
    """Return the settings on which a result depends that are not the libraries' defaults."""
    values = {name: SETTINGS[name].read() for name in _DEFAULTS}
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}
