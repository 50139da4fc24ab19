"""Settings of libraries that hold for a whole process and on which a training's bits depend."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""Functions that read a setting, as plain data, and change it."""


def _enable_flash_attention(enabled: bool | None) -> None:
    if enabled is not None:
        (keras.config.enable_flash_attention if enabled else keras.config.disable_flash_attention)()


KERAS_SETTINGS: dict[str, Setting] = {
    "keras.config.floatx()": (keras.config.floatx, keras.config.set_floatx),
    "keras.config.epsilon()": (keras.config.epsilon, keras.config.set_epsilon),
    "keras.config.image_data_format()": (
        keras.config.image_data_format,
        keras.config.set_image_data_format,
    ),
    "keras.config.dtype_policy()": (
        lambda: keras.config.dtype_policy().name,
        keras.config.set_dtype_policy,
    ),
    "keras.config.is_flash_attention_enabled()": (
        keras.config.is_flash_attention_enabled,
        _enable_flash_attention,
    ),
}
"""Settings of Keras, by the text that reads them; a checkpoint has them."""

SETTINGS: dict[str, Setting] = {
    **KERAS_SETTINGS,
    "tf.config.functions_run_eagerly()": (
        tf.config.functions_run_eagerly,
        tf.config.run_functions_eagerly,
    ),
    "tf.config.optimizer.get_jit()": (tf.config.optimizer.get_jit, tf.config.optimizer.set_jit),
    "tf.config.optimizer.get_experimental_options()": (
        tf.config.optimizer.get_experimental_options,
        tf.config.optimizer.set_experimental_options,
    ),
    "tf.config.get_soft_device_placement()": (
        tf.config.get_soft_device_placement,
        tf.config.set_soft_device_placement,
    ),
    "tf.config.experimental.tensor_float_32_execution_enabled()": (
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    "numpy.geterr()": (np.geterr, lambda kinds: np.seterr(**kinds)),
}
"""All settings, by the text that reads them; none of these functions starts TensorFlow."""
