"""Every layer, activation, optimizer, loss and metric of Keras, in a model that is as small as it can be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

Array = np.ndarray[Any, Any]

_L = keras.layers
_VECTOR, _SEQUENCE, _IMAGE, _VOLUME = (6,), (5, 4), (6, 6, 2), (4, 4, 4, 2)


@dataclass(frozen=True)
class Part:
    """One of Keras's parts, and a model that has it.

    Attributes:
        kind: Such as "layer".
        name: Keras's name of it.
        model: Makes the model, compiled and built.
        x, y: A few samples.
    """

    kind: str
    name: str
    model: Callable[[], keras.Model]
    x: Array
    y: Array


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(0.1, 0.9, (6, *shape)).astype("float32")


def _through(layer: Any, shape: tuple[int, ...], dtype: str = "float32") -> keras.Model:
    given = keras.Input(shape, dtype=dtype)
    out = layer(given)
    out = out[0] if isinstance(out, list | tuple) else out
    if out.dtype != "float32":
        out = keras.ops.cast(out, "float32")
    out = _L.Flatten()(out) if len(out.shape) > 2 else out
    model = keras.Model(given, _L.Dense(2)(out))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.5), "mse")
    return model


def _merging(layer: Any) -> Callable[[Any], Any]:
    return lambda x: layer([_L.Dense(4)(x), _L.Dense(4)(x)])


def _attending(layer: Any) -> Callable[[Any], Any]:
    return lambda x: layer(_L.Dense(4)(x), _L.Dense(4)(x))


def _dense(**options: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input(_VECTOR), _L.Dense(5, activation="tanh"), _L.Dense(3, activation="softmax")]
    )
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


_LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Activation": (lambda: _L.Activation("relu"), _VECTOR),
    "ActivityRegularization": (lambda: _L.ActivityRegularization(0.1, 0.1), _VECTOR),
    "AdaptiveAveragePooling1D": (lambda: _L.AdaptiveAveragePooling1D(2), _SEQUENCE),
    "AdaptiveAveragePooling2D": (lambda: _L.AdaptiveAveragePooling2D(2), _IMAGE),
    "AdaptiveAveragePooling3D": (lambda: _L.AdaptiveAveragePooling3D(2), _VOLUME),
    "AdaptiveMaxPooling1D": (lambda: _L.AdaptiveMaxPooling1D(2), _SEQUENCE),
    "AdaptiveMaxPooling2D": (lambda: _L.AdaptiveMaxPooling2D(2), _IMAGE),
    "AdaptiveMaxPooling3D": (lambda: _L.AdaptiveMaxPooling3D(2), _VOLUME),
    "Add": (lambda: _merging(_L.Add()), _VECTOR),
    "AdditiveAttention": (lambda: lambda x: _L.AdditiveAttention()([x, x]), _SEQUENCE),
    "AlphaDropout": (lambda: _L.AlphaDropout(0.3), _VECTOR),
    "Attention": (lambda: lambda x: _L.Attention(use_scale=True)([x, x]), _SEQUENCE),
    "Average": (lambda: _merging(_L.Average()), _VECTOR),
    "AveragePooling1D": (lambda: _L.AveragePooling1D(2), _SEQUENCE),
    "AveragePooling2D": (lambda: _L.AveragePooling2D(2), _IMAGE),
    "AveragePooling3D": (lambda: _L.AveragePooling3D(2), _VOLUME),
    "BatchNormalization": (_L.BatchNormalization, _VECTOR),
    "Bidirectional": (lambda: _L.Bidirectional(_L.SimpleRNN(3)), _SEQUENCE),
    "CategoryEncoding": (lambda: _L.CategoryEncoding(5, "multi_hot"), (3,)),
    "CenterCrop": (lambda: _L.CenterCrop(4, 4), _IMAGE),
    "Concatenate": (lambda: _merging(_L.Concatenate()), _VECTOR),
    "Conv1D": (lambda: _L.Conv1D(3, 2), _SEQUENCE),
    "Conv1DTranspose": (lambda: _L.Conv1DTranspose(3, 2), _SEQUENCE),
    "Conv2D": (lambda: _L.Conv2D(3, 2), _IMAGE),
    "Conv2DTranspose": (lambda: _L.Conv2DTranspose(3, 2), _IMAGE),
    "Conv3D": (lambda: _L.Conv3D(3, 2), _VOLUME),
    "Conv3DTranspose": (lambda: _L.Conv3DTranspose(3, 2), _VOLUME),
    "ConvLSTM1D": (lambda: _L.ConvLSTM1D(2, 2), (3, 4, 2)),
    "ConvLSTM2D": (lambda: _L.ConvLSTM2D(2, 2), (3, 4, 4, 2)),
    "Cropping1D": (lambda: _L.Cropping1D(1), _SEQUENCE),
    "Cropping2D": (lambda: _L.Cropping2D(1), _IMAGE),
    "Cropping3D": (lambda: _L.Cropping3D(1), _VOLUME),
    "Dense": (lambda: _L.Dense(3, kernel_regularizer="l2"), _VECTOR),
    "DepthwiseConv1D": (lambda: _L.DepthwiseConv1D(2), _SEQUENCE),
    "DepthwiseConv2D": (lambda: _L.DepthwiseConv2D(2), _IMAGE),
    "Discretization": (lambda: _L.Discretization([0.2, 0.5]), _VECTOR),
    "Dot": (lambda: _merging(_L.Dot(1)), _VECTOR),
    "Dropout": (lambda: _L.Dropout(0.3), _VECTOR),
    "ELU": (_L.ELU, _VECTOR),
    "EinsumDense": (lambda: _L.EinsumDense("abc,cd->abd", (5, 3)), _SEQUENCE),
    "Embedding": (lambda: _L.Embedding(5, 3), (4,)),
    "Flatten": (_L.Flatten, _SEQUENCE),
    "GRU": (lambda: _L.GRU(3), _SEQUENCE),
    "GaussianDropout": (lambda: _L.GaussianDropout(0.3), _VECTOR),
    "GaussianNoise": (lambda: _L.GaussianNoise(0.3), _VECTOR),
    "GlobalAveragePooling1D": (_L.GlobalAveragePooling1D, _SEQUENCE),
    "GlobalAveragePooling2D": (_L.GlobalAveragePooling2D, _IMAGE),
    "GlobalAveragePooling3D": (_L.GlobalAveragePooling3D, _VOLUME),
    "GlobalMaxPooling1D": (_L.GlobalMaxPooling1D, _SEQUENCE),
    "GlobalMaxPooling2D": (_L.GlobalMaxPooling2D, _IMAGE),
    "GlobalMaxPooling3D": (_L.GlobalMaxPooling3D, _VOLUME),
    "GroupNormalization": (lambda: _L.GroupNormalization(2), _SEQUENCE),
    "GroupedQueryAttention": (lambda: _attending(_L.GroupQueryAttention(2, 2, 1)), _SEQUENCE),
    "Identity": (_L.Identity, _VECTOR),
    "LSTM": (lambda: _L.LSTM(3, recurrent_dropout=0.2), _SEQUENCE),
    "Lambda": (lambda: _L.Lambda(lambda x: 2 * x), _VECTOR),
    "LayerNormalization": (_L.LayerNormalization, _VECTOR),
    "LeakyReLU": (_L.LeakyReLU, _VECTOR),
    "Masking": (lambda: lambda x: _L.GRU(3)(_L.Masking(0.5)(x)), _SEQUENCE),
    "MaxPooling1D": (lambda: _L.MaxPooling1D(2), _SEQUENCE),
    "MaxPooling2D": (lambda: _L.MaxPooling2D(2), _IMAGE),
    "MaxPooling3D": (lambda: _L.MaxPooling3D(2), _VOLUME),
    "Maximum": (lambda: _merging(_L.Maximum()), _VECTOR),
    "Minimum": (lambda: _merging(_L.Minimum()), _VECTOR),
    "MultiHeadAttention": (lambda: _attending(_L.MultiHeadAttention(2, 2, dropout=0.2)), _SEQUENCE),
    "Multiply": (lambda: _merging(_L.Multiply()), _VECTOR),
    "Normalization": (lambda: _L.Normalization(mean=0.5, variance=2.0), _VECTOR),
    "PReLU": (_L.PReLU, _VECTOR),
    "Permute": (lambda: _L.Permute((2, 1)), _SEQUENCE),
    "RMSNormalization": (_L.RMSNormalization, _VECTOR),
    "RNN": (lambda: _L.RNN(_L.StackedRNNCells([_L.LSTMCell(2), _L.GRUCell(2)])), _SEQUENCE),
    "RandomBrightness": (lambda: _L.RandomBrightness(0.2), (6, 6, 3)),
    "RandomContrast": (lambda: _L.RandomContrast(0.2), (6, 6, 3)),
    "RandomCrop": (
        lambda: lambda x: _L.GlobalAveragePooling2D()(_L.RandomCrop(4, 4)(x)),
        _IMAGE,
    ),
    "RandomFlip": (_L.RandomFlip, _IMAGE),
    "RandomRotation": (lambda: _L.RandomRotation(0.2), _IMAGE),
    "RandomTranslation": (lambda: _L.RandomTranslation(0.2, 0.2), _IMAGE),
    "RandomZoom": (lambda: _L.RandomZoom(0.2), _IMAGE),
    "ReLU": (_L.ReLU, _VECTOR),
    "RepeatVector": (lambda: _L.RepeatVector(2), _VECTOR),
    "Rescaling": (lambda: _L.Rescaling(0.5), _VECTOR),
    "Reshape": (lambda: _L.Reshape((3, 2)), _VECTOR),
    "Resizing": (lambda: _L.Resizing(4, 4), _IMAGE),
    "SeparableConv1D": (lambda: _L.SeparableConv1D(3, 2), _SEQUENCE),
    "SeparableConv2D": (lambda: _L.SeparableConv2D(3, 2), _IMAGE),
    "SimpleRNN": (lambda: _L.SimpleRNN(3, dropout=0.2), _SEQUENCE),
    "Softmax": (_L.Softmax, _VECTOR),
    "SpatialDropout1D": (lambda: _L.SpatialDropout1D(0.3), _SEQUENCE),
    "SpatialDropout2D": (lambda: _L.SpatialDropout2D(0.3), _IMAGE),
    "SpatialDropout3D": (lambda: _L.SpatialDropout3D(0.3), _VOLUME),
    "SpectralNormalization": (lambda: _L.SpectralNormalization(_L.Dense(3)), _VECTOR),
    "Subtract": (lambda: _merging(_L.Subtract()), _VECTOR),
    "TimeDistributed": (lambda: _L.TimeDistributed(_L.Dense(3)), _SEQUENCE),
    "UnitNormalization": (_L.UnitNormalization, _VECTOR),
    "UpSampling1D": (lambda: _L.UpSampling1D(2), _SEQUENCE),
    "UpSampling2D": (lambda: _L.UpSampling2D(2), _IMAGE),
    "UpSampling3D": (lambda: _L.UpSampling3D(2), _VOLUME),
    "ZeroPadding1D": (lambda: _L.ZeroPadding1D(1), _SEQUENCE),
    "ZeroPadding2D": (lambda: _L.ZeroPadding2D(1), _IMAGE),
    "ZeroPadding3D": (lambda: _L.ZeroPadding3D(1), _VOLUME),
}

_COLOURS = (6, 6, 3)

_LAYERS |= {
    "AugMix": (lambda: _L.AugMix((0, 1)), _COLOURS),
    "AutoContrast": (lambda: _L.AutoContrast((0, 1)), _COLOURS),
    "ConvLSTM3D": (lambda: _L.ConvLSTM3D(2, 2), (3, 4, 4, 4, 2)),
    "Equalization": (lambda: _L.Equalization((0, 1)), _COLOURS),
    "Hashing": (lambda: _L.Hashing(3), (3,)),
    "IntegerLookup": (lambda: _L.IntegerLookup(vocabulary=[1, 2, 3]), (3,)),
    "MelSpectrogram": (
        lambda: _L.MelSpectrogram(
            8, sequence_stride=4, sampling_rate=16, num_mel_bins=2, max_freq=8
        ),
        (32,),
    ),
    "RandAugment": (lambda: _L.RandAugment((0, 1)), _COLOURS),
    "RandomColorDegeneration": (lambda: _L.RandomColorDegeneration(0.5, (0, 1)), _COLOURS),
    "RandomColorJitter": (lambda: _L.RandomColorJitter((0, 1), 0.2, 0.2, 0.2, 0.2), _COLOURS),
    "RandomElasticTransform": (
        lambda: _L.RandomElasticTransform(1.0, 1.0, value_range=(0, 1)),
        _COLOURS,
    ),
    "RandomErasing": (lambda: _L.RandomErasing(value_range=(0, 1)), _COLOURS),
    "RandomGaussianBlur": (lambda: _L.RandomGaussianBlur(1.0, value_range=(0, 1)), _COLOURS),
    "RandomGrayscale": (lambda: _L.RandomGrayscale(0.5), _COLOURS),
    "RandomHue": (lambda: _L.RandomHue(0.5, (0, 1)), _COLOURS),
    "RandomInvert": (lambda: _L.RandomInvert(0.5, (0, 1)), _COLOURS),
    "RandomPerspective": (lambda: _L.RandomPerspective(0.5), _COLOURS),
    "RandomPosterization": (lambda: _L.RandomPosterization(4, (0, 1)), _COLOURS),
    "RandomSaturation": (lambda: _L.RandomSaturation(0.5, (0, 1)), _COLOURS),
    "RandomSharpness": (lambda: _L.RandomSharpness(0.5, (0, 1)), _COLOURS),
    "RandomShear": (lambda: _L.RandomShear(0.2, 0.2), _COLOURS),
    "ReversibleEmbedding": (lambda: _L.ReversibleEmbedding(5, 3), (4,)),
    "STFTSpectrogram": (
        lambda: _L.STFTSpectrogram(frame_length=8, frame_step=4, fft_length=8),
        (32, 1),
    ),
    "Solarization": (lambda: _L.Solarization(value_range=(0, 1)), _COLOURS),
}

_WHOLE_NUMBERS = {
    "Embedding",
    "CategoryEncoding",
    "Hashing",
    "IntegerLookup",
    "ReversibleEmbedding",
}

LEFT_OUT = {
    "FlaxLayer": "of another framework",
    "JaxLayer": "of another framework",
    "TorchModuleWrapper": "of another framework",
    "TFSMLayer": "needs a saved model",
    "GRUCell": "tried inside RNN",
    "LSTMCell": "tried inside RNN",
    "SimpleRNNCell": "tried inside SimpleRNN",
    "StackedRNNCells": "tried inside RNN",
    "Pipeline": "calls other layers",
    "CutMix": "changes labels as well, in a tf.data pipeline",
    "MixUp": "changes labels as well, in a tf.data pipeline",
    "MaxNumBoundingBoxes": "of bounding boxes, in a tf.data pipeline",
    "ContrastLimitedAdaptiveHistogramEqualization": "of whole images, in a tf.data pipeline",
    "HashedCrossing": "of strings",
    "StringLookup": "of strings",
    "TextVectorization": "of strings",
    "InputLayer": "does nothing",
    "Layer": "the base class",
    "Wrapper": "the base class",
}
"""Layers that are not tried, and why."""


def parts() -> Iterator[Part]:
    """Every part, by kind and name."""
    for name, (layer, shape) in _LAYERS.items():
        whole = name in _WHOLE_NUMBERS
        x = (floats(*shape) * 5).astype("int32") if whole else floats(*shape)
        dtype = str(x.dtype)
        yield Part(
            "layer", name, lambda a=layer, b=shape, c=dtype: _through(a(), b, c), x, floats(2)
        )
    for name in _classes(keras.optimizers, keras.optimizers.Optimizer):
        made = getattr(keras.optimizers, name)
        yield Part("optimizer", name, lambda a=made: _dense(optimizer=_optimizer(a)), *_targets(3))
    for name in _classes(keras.losses, keras.losses.Loss):
        made = getattr(keras.losses, name)
        if name == "CTC":
            yield Part("loss", name, _ctc, floats(*_SEQUENCE), np.ones((6, 2), "int32"))
            continue
        yield Part("loss", name, lambda a=made: _dense(loss=a()), *_for(name))
    for name in _classes(keras.metrics, keras.metrics.Metric):
        made = getattr(keras.metrics, name)
        yield Part("metric", name, lambda a=made: _dense(metrics=[_metric(a)]), *_for(name))


def _ctc() -> keras.Model:
    model = keras.Sequential([keras.Input(_SEQUENCE), _L.Dense(4)])
    model.compile("sgd", keras.losses.CTC())
    return model


def _classes(module: Any, base: type) -> list[str]:
    abstract = {"Optimizer", "Loss", "Metric", "MeanMetricWrapper", "Mean", "Sum"}
    return [
        name
        for name, each in sorted(vars(module).items())
        if inspect.isclass(each) and issubclass(each, base) and name not in abstract
    ]


def _optimizer(made: Any) -> Any:
    if made is keras.optimizers.LossScaleOptimizer:
        return made(keras.optimizers.Adam())
    if made is keras.optimizers.MultiOptimizer:
        return made(lambda _variable: keras.optimizers.Adam())
    return made()


def _metric(made: Any) -> Any:
    needed = {
        "num_classes": 3,
        "target_class_ids": [0],
        "k": 2,
        "recall": 0.5,
        "precision": 0.5,
        "specificity": 0.5,
        "sensitivity": 0.5,
    }
    given = {
        name: needed[name]
        for name, each in inspect.signature(made.__init__).parameters.items()
        if name in needed and each.default is inspect.Parameter.empty
    }
    return made(**given)


def _targets(size: int) -> tuple[Array, Array]:
    return floats(*_VECTOR), floats(size, seed=1)


def _for(name: str) -> tuple[Array, Array]:
    x = floats(*_VECTOR)
    labels = np.arange(6) % 3
    if name.startswith("Sparse") or name == "Circle":
        return x, labels
    return x, np.eye(3, dtype="float32")[labels]
