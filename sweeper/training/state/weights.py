"""The model's variables alone, brought back from a checkpoint: for models that train no further."""

from __future__ import annotations

import keras

from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.errors import RestoreError
from sweeper.training.state.variables import Variables


def load_variables(model: keras.Model, loaded: LoadedCheckpoint) -> None:
    """Assign the checkpoint's model variables, all of them or none.

    Args:
        model: Built; its variables are in the order in which training had them.
        loaded: A checkpoint of the same model.

    Raises:
        RestoreError: A variable is missing, is one too many, or has another shape or type; each is
            named, and nothing was assigned.
    """
    variables = Variables("model", lambda: model.variables)
    saved = loaded.state[variables.name]
    found = variables.mismatches(saved, loaded.tensors)
    if found:
        shown = "\n  ".join(found)
        msg = (
            f"checkpoint {loaded.path} does not fit the model that the factory makes (nothing was "
            f"assigned):\n  {shown}\nThe study's code makes another model than when it was written; "
            "undo the change, or load it with the code that wrote it"
        )
        raise RestoreError(msg)
    variables.restore(saved, loaded.tensors)
