"""Every part of Keras that fuses gives a lane the same bits alone and in a full group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_parts import LEFT_OUT, Part, parts

from sweeper.errors import LanesError
from sweeper.lanes.block import FusedStep, StepRequest
from sweeper.lanes.step import LaneStep
from sweeper.train.loop.building import build_before_tracing
from sweeper.train.randomness.seeds import seed_everything

_LANES = 3

PARTS = {f"{part.kind} {part.name}": part for part in parts()}

_SAMPLE = (
    *("layer Dense", "layer Dropout", "layer Conv2D", "layer MaxPooling2D", "layer GRU"),
    *("layer Embedding", "layer MultiHeadAttention", "optimizer Adam", "optimizer Lion"),
    *("loss Huber", "metric AUC"),
)
"""What every run of the tests tries; the others, the whole suite does."""

NOT_FUSED: dict[str, str] = {
    "layer SpectralNormalization": "lists of tensors that cannot be parted by lane",
    "layer IntegerLookup": "integer_lookup",
    "layer AugMix": "gives another shape for other values",
    "layer RandAugment": "gives another shape for other values",
    "optimizer LossScaleOptimizer": "gradients are infinite",
}
"""Parts that are refused, and a word of the reason."""


@dataclass(frozen=True)
class _Copy:
    """The step of another trial with the same graph: its state has other values."""

    of: LaneStep
    variables: Sequence[Any]

    @property
    def handles(self) -> list[Any]:
        return [variable.value.handle for variable in self.variables]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)


def _copies(step: LaneStep) -> list[_Copy]:
    values = [np.asarray(v.value) for v in step.variables]
    copies = []
    for lane in range(_LANES):
        variables = []
        for at, (variable, value) in enumerate(zip(step.variables, values, strict=True)):
            changed = value
            if at < step.trained:
                changed = value * (1 + 0.01 * lane) + 0.001 * lane
            elif "seed" in variable.path:
                changed = value + lane
            variables.append(keras.Variable(changed.astype(value.dtype), dtype=variable.dtype))
        copies.append(_Copy(step, variables))
    return copies


def trained(part: Part, *groups: Sequence[int]) -> tuple[list[dict[int, list[bytes]]], set[str]]:
    """Train, and test, groups of lanes; how each lane ends, and the operations that are unrolled."""
    seed_everything(1)
    model = part.model()
    build_before_tracing(model, (part.x, part.y))
    model.optimizer.build(model.trainable_variables)
    specs = tuple(tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in (part.x, part.y))
    arrays = [tf.constant(part.x), tf.constant(part.y)]
    rows = np.arange(6).reshape(2, 3)
    unrolled: set[str] = set()
    ends: list[dict[int, list[bytes]]] = [{lane: [] for lane in lanes} for lanes in groups]
    for kind in ("train", "test"):
        step = LaneStep(model, specs, kind)
        fused = FusedStep(step, _LANES)
        unrolled |= fused.unrolled.keys()
        for end in ends:
            copies = _copies(step)
            reported = fused.run(
                {
                    lane: StepRequest(copies[lane], arrays, np.roll(rows, lane, axis=1))
                    for lane in end
                }
            )
            for lane, values in end.items():
                values += [np.asarray(v.value).tobytes() for v in copies[lane].variables]
                values.append(repr(sorted(reported[lane].items())).encode())
    return ends, unrolled


def _check(part: Part) -> None:
    name = f"{part.kind} {part.name}"
    if name in NOT_FUSED:
        with pytest.raises(LanesError, match=NOT_FUSED[name]):
            trained(part, [0])
        return
    (together, alone), _ = trained(part, range(_LANES), [2])
    assert alone[2] == together[2]
    assert together[1] != together[2]


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_part_fuses_exactly(name: str) -> None:
    _check(PARTS[name])


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(PARTS.keys() - set(_SAMPLE)))
def test_every_other_part_fuses_exactly(name: str) -> None:
    _check(PARTS[name])


def test_every_layer_of_keras_is_tried() -> None:
    classes = {
        each.__name__
        for each in vars(keras.layers).values()
        if isinstance(each, type) and issubclass(each, keras.layers.Layer)
    }
    tried = {part.name for part in PARTS.values() if part.kind == "layer"}
    assert classes == tried | LEFT_OUT.keys()
