"""TensorFlow's random ops whose state lives in their kernels, where no checkpoint can reach it."""

from __future__ import annotations

__all__ = ["STATEFUL_RANDOM"]

STATEFUL_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "TruncatedNormal",
    }
)
"""Names of ops, in the step of a training or in the functions of a dataset."""
