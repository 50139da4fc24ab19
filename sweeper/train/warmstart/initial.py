"""Warm start of a training: values are matched with the model's variables, compared, and then assigned.

All variables are compared before any is assigned, so the model gets all values, or the trial fails with all
mismatches. Values are copied into the existing variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import keras

from sweeper.checkpoint.tensors import Array
from sweeper.errors import CheckpointError, WarmStartError
from sweeper.spec.warm_start import Mismatch, MismatchKind, WarmStart, WarmStartReport
from sweeper.train.warmstart.files import Match, StoredWeights, read_weights
from sweeper.train.warmstart.source import locate, variables_of

_MOST_NAMES = 3
_REPEATED = re.compile(r"(_\d+)?(#\d+)?$")


@dataclass(frozen=True)
class WarmValues:
    """A matched warm start, before it is assigned."""

    report: WarmStartReport
    pairs: tuple[tuple[Any, Array], ...] = field(repr=False)

    def assign(self) -> None:
        """Copy the values into the variables."""
        for variable, value in self.pairs:
            variable.assign(value)


def match_warm_start(options: WarmStart, model: keras.Model) -> WarmValues:
    """Find the values of the variables of ``model``, which has all of the training, in the file of a warm start.

    Raises:
        WarmStartError: The model has variables that are not created yet; the file is missing, damaged
            or of an unknown format; or it does not fit.
        CheckpointError: The file cannot be read, or was changed since the study was created.
    """
    _check_built(model)
    located = locate(options)
    digest = located.digest()
    if options.digest not in (None, digest):
        msg = (
            f"the warm start {located.path} has changed: its digest is {digest}, expected "
            f"{options.digest}; restore the file with which the study began, or give the study "
            "another name"
        )
        raise CheckpointError(msg)
    try:
        stored = read_weights(located, model, options)
    except OSError as error:
        msg = f"the warm start {located.path} cannot be read: {error}; check the disk, then resume"
        raise CheckpointError(msg) from error
    if located.digest() != digest:
        msg = f"the warm start {located.path} was changed while it was read; start again"
        raise CheckpointError(msg)
    taken = {each.key for each in stored.matches}
    extra = [name for name in stored.values if name not in taken]
    fitting, mismatches = _compare(stored.matches, stored.values, extra)
    of_the_model = len(fitting)
    if options.optimizer:
        slots, differing = _compare_optimizer(model, stored, str(located.path))
        fitting, mismatches = fitting + slots, mismatches + differing
    report = WarmStartReport(
        path=str(located.path),
        kind=stored.kind,
        digest=digest,
        model=model.name,
        matched=tuple((match.name, str(match.key)) for match, _ in fitting),
        of=len(stored.matches),
        mismatches=tuple(mismatches),
        optimizer=len(fitting) - of_the_model,
    )
    if (options.strict and report.mismatches) or not of_the_model:
        raise WarmStartError(report.refusal(strict=options.strict))
    return WarmValues(report, tuple((match.variable, value) for match, value in fitting))


Compared = tuple[list[tuple[Match, Array]], list[Mismatch]]
"""The variables that fit, with their values, and the mismatches."""


def _compare(
    matches: Sequence[Match], values: Mapping[str, Array], extra: Iterable[str]
) -> Compared:
    """Compare the shapes and dtypes of variables with those of values; ``extra`` have no variable."""
    fitting, mismatches = [], []
    for match in matches:
        value = values.get(match.key or "")
        if value is None:
            mismatches.append(Mismatch("missing", match.name, match.reason))
            continue
        dtype = keras.backend.standardize_dtype(match.variable.dtype)
        shape = tuple(match.variable.shape)
        if (shape, dtype) == (value.shape, value.dtype.name):
            fitting.append((match, value))
            continue
        kind: MismatchKind = "other dtype" if shape == value.shape else "other shape"
        seen = f"{dtype}{list(shape)}, and {_form(value)} in it ({match.key})"
        mismatches.append(Mismatch(kind, match.name, seen))
    mismatches += [Mismatch("extra", name, _form(values[name])) for name in extra]
    return fitting, mismatches


def _form(value: Array) -> str:
    return f"{value.dtype.name}{list(value.shape)}"


def _compare_optimizer(model: keras.Model, stored: StoredWeights, path: str) -> Compared:
    """Compare the optimizer's variables, by their order, without its learning rate."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        msg = (
            f"optimizer=True: the model {model.name!r} has no optimizer with variables before its "
            "first step; leave it out (optimizer=False)"
        )
        raise WarmStartError(msg)
    if stored.optimizer is None:
        msg = (
            f"optimizer=True: the warm start {path} is a {stored.kind} file; an optimizer's state is "
            "taken from a checkpoint of sweeper's only (WarmStart.from_trial)"
        )
        raise WarmStartError(msg)
    if not stored.optimizer:
        msg = f"the warm start {path} has no optimizer state"
        raise WarmStartError(msg)
    rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
    names, own = list(stored.optimizer), optimizer.variables
    matches = []
    for index, (variable, name) in enumerate(zip_longest(own, names[: len(own)])):
        if variable is rate:
            continue
        reason = f"not in it; looked for optimizer variable {index}"
        if name is not None and _slot(name) != _slot(variable.path):
            # Adam's first moments and SGD's momentum have the same shapes.
            matches.append(Match(variable, None, f"{reason}, which is {name} there"))
        else:
            matches.append(Match(variable, name, reason))
    return _compare(matches, stored.optimizer, names[len(own) :])


def _slot(name: str) -> str:
    """Return what an optimizer's variable is for: ``momentum`` for ``sgd/dense_kernel_momentum``."""
    return _REPEATED.sub("", name).rpartition("/")[2].rpartition("_")[2]


def _check_built(model: keras.Model) -> None:
    """Refuse a model whose variables are created by the first batch; name its layers without variables."""
    inner = model._flatten_layers(include_self=False)
    late = [layer.name for layer in inner if not layer.built]
    if not variables_of(model) or (model.run_eagerly and late):
        named = ", ".join(map(repr, late[:_MOST_NAMES])) or repr(model.name)
        msg = (
            f"the model {model.name!r} has no variables yet in {named}, so a warm start would "
            "have no effect there; build it in the model factory: model.build(shape), or call it "
            "on a batch"
        )
        raise WarmStartError(msg)
