"""Ensemble of trained models: one model whose predictions are the mean of theirs."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import keras

from sweeper.errors import UsageError


def mean_of_models(
    models: Mapping[int, keras.Model], path: str | PathLike[str] | None = None
) -> keras.Model:
    """Return the mean of the models, by their trials' numbers; write it to ``path`` if that is given."""
    forms = {number: (_form(m, "inputs"), _form(m, "outputs")) for number, m in models.items()}
    first = next(iter(forms))
    for number, form in forms.items():
        if form != forms[first] or None in form:
            raise UsageError(
                f"the models of trials {first} and {number} have no common mean: inputs and outputs "
                f"are {forms[first]} and {form}; leave one out, or build each with keras.Input"
            )
    inputs = keras.tree.map_structure(
        # The names, because dictionaries of data have them.
        lambda tensor: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name),
        _ends(models[first], "inputs"),
    )
    outputs = []
    for number, model in models.items():
        # Models of one factory have equal names, which one model may not contain twice.
        model.name = f"trial_{number}"
        outputs.append(model(inputs))
    mean = outputs[0]
    if len(outputs) > 1:
        mean = keras.tree.map_structure(lambda *each: keras.layers.Average()(each), *outputs)
    ensemble = keras.Model(inputs, mean, name="ensemble")
    if path is not None:
        ensemble.save(path)
    return ensemble


def _ends(model: keras.Model, ends: str) -> Any:
    """Return inputs or outputs as the model takes or returns them; None if it knows none before its first batch."""
    structure = getattr(model, ends.removesuffix("s"), None)
    tensors = getattr(model, ends, None)
    if structure is None and tensors:
        # A Sequential model has only the list.
        return tensors[0] if len(tensors) == 1 else tensors
    return structure


def _form(model: keras.Model, ends: str) -> Any:
    """Return shapes and types of inputs or outputs, in their structure; None for a model that knows none."""
    return keras.tree.map_structure(
        lambda tensor: None if tensor is None else (tuple(tensor.shape[1:]), str(tensor.dtype)),
        _ends(model, ends),
    )
