"""What a training step has worked out of a batch, for those of its parts that come after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepValues:
    """What a step has worked out of a batch, for the methods that come after.

    Attributes:
        batch: As `TrainingStep.make_batch` returned it.
        inputs: What the model was given.
        outputs: What it returned.
        targets: What the loss compares with.
        predictions: What the loss compares.
        weights: Of the examples; None where there are none.
        per_example: The loss of each example, or a structure of those.
        loss: The number whose gradients are taken: reduced losses and extra losses. On several
            replicas it is this replica's share; the shares add up to the loss.
        training: Whether this is a step of training; False in validation.

    Examples:
        >>> class Reporting(sweeper.TrainingStep):
        ...     def logs(self, values):
        ...         return {"loss": values.loss, "largest": abs(values.predictions).max()}
    """

    batch: Any
    inputs: Any
    outputs: Any
    targets: Any
    predictions: Any
    weights: Any
    per_example: Any
    loss: Any
    training: bool
