"""Digests of a model's weights, which show of which epoch the weights at the end of a training are.

Callbacks change the weights after the last epoch was measured: ``EarlyStopping`` restores the best
epoch's, ``SwapEMAWeights`` and optimizers with averages put those in. The digest of each epoch is that
of the weights with which it was validated, or with which it ended if it was not validated.
"""

from __future__ import annotations

import keras
import numpy as np
import xxhash


def weights_digest(model: keras.Model) -> str:
    """Return the XXH3-128 (hex) of all weights of the model, trainable and not, in order."""
    digest = xxhash.xxh3_128()
    for weight in model.weights:
        array = np.ascontiguousarray(weight)
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
