"""``.weights.h5``: only the model's weights, for ``model.load_weights`` of a model from the same code.

Keras leaves out the states of seed generators (such as dropout's), which predictions do not use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeper.models.formats.form import Leaving, Written
from sweeper.models.signature import predict


class WeightsFile:
    """See `ExportFormat`."""

    name = "weights"
    suffix = ".weights.h5"
    tolerance = 0.0

    def write(self, leaving: Leaving, path: Path) -> Written:
        leaving.model.save_weights(path)
        return Written({"variables": len(leaving.model.weights)})

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        del written
        model = leaving.rebuilt()
        model.load_weights(path)
        return predict(model, leaving.batch)


FORMAT = WeightsFile()
