"""Warm start of a training: values are matched with the model's variables, compared, and then assigned.

All variables are compared before any is assigned, so the model gets all values, or the trial fails with all
mismatches. Values are copied into the existing variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras

from sweeper.checkpoint.tensors import Array
from sweeper.errors import CheckpointError, WarmStartError
from sweeper.spec.warm_start import Mismatch, WarmStart, WarmStartReport
from sweeper.train.warmstart.source import locate, variables_of

if TYPE_CHECKING:
    from sweeper.train.warmstart.files import StoredWeights

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
    """Find the values of the model's variables in the file of a warm start.

    Args:
        options: The warm start.
        model: A built model, with all variables of the training.

    Raises:
        WarmStartError: The model has variables that are not created yet; the file is missing, damaged
            or of an unknown format; or it does not fit.
        CheckpointError: The file cannot be read, or was changed since the study was created.
    """
    from sweeper.train.warmstart.files import read_weights

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
    comparison = _Comparison()
    for each in stored.matches:
        comparison.add(
            each.variable, each.name, each.key, stored.values.get(each.key or ""), each.reason
        )
    taken = {each.key for each in stored.matches}
    comparison.add_extra({n: v for n, v in stored.values.items() if n not in taken})
    of_the_model = len(comparison.pairs)
    if options.optimizer:
        _compare_optimizer(comparison, model, stored, str(located.path))
    report = WarmStartReport(
        path=str(located.path),
        kind=stored.kind,
        digest=digest,
        model=model.name,
        matched=tuple(comparison.names),
        of=len(stored.matches),
        mismatches=tuple(comparison.mismatches),
        optimizer=len(comparison.pairs) - of_the_model,
    )
    if (options.strict and report.mismatches) or not of_the_model:
        raise WarmStartError(report.refusal(strict=options.strict))
    return WarmValues(report, tuple(comparison.pairs))


class _Comparison:
    """Comparison of the shapes and dtypes of variables with those of stored values."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Array]] = []
        self.names: list[tuple[str, str]] = []
        self.mismatches: list[Mismatch] = []

    def add(
        self, variable: Any, name: str, key: str | None, value: Array | None, reason: str
    ) -> None:
        """Compare one variable with the value ``key``; None if the file does not have it."""
        if key is None or value is None:
            self.mismatches.append(Mismatch("missing", name, reason))
            return
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if tuple(variable.shape) == value.shape and dtype == value.dtype.name:
            self.pairs.append((variable, value))
            self.names.append((name, key))
            return
        expected = f"{dtype}{list(variable.shape)}"
        self.mismatches.append(
            Mismatch(
                "other dtype" if tuple(variable.shape) == value.shape else "other shape",
                name,
                f"{expected}, and {_form(value)} in it ({key})",
            )
        )

    def add_extra(self, values: dict[str, Array]) -> None:
        """Report values without a variable in the model."""
        for name, value in values.items():
            self.mismatches.append(Mismatch("extra", name, _form(value)))


def _form(value: Array) -> str:
    return f"{value.dtype.name}{list(value.shape)}"


def _compare_optimizer(
    comparison: _Comparison, model: keras.Model, stored: StoredWeights, path: str
) -> None:
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
    names = list(stored.optimizer)
    for index, variable in enumerate(optimizer.variables):
        if variable is rate:
            continue
        name = names[index] if index < len(names) else None
        reason = f"not in it; looked for optimizer variable {index}"
        if name is not None and _slot(name) != _slot(variable.path):
            # Adam's first moments and SGD's momentum have the same shapes.
            name, reason = None, f"{reason}, which is {name} there"
        value = None if name is None else stored.optimizer[name]
        comparison.add(variable, variable.path, name, value, reason)
    beyond = names[len(optimizer.variables) :]
    comparison.add_extra({name: stored.optimizer[name] for name in beyond})


def _slot(name: str) -> str:
    """Return what an optimizer's variable is for: ``momentum`` for ``sgd/dense_kernel_momentum``."""
    return _REPEATED.sub("", name).rpartition("/")[2].rpartition("_")[2]


def _check_built(model: keras.Model) -> None:
    """Refuse a model whose variables are created by the first batch.

    Raises:
        WarmStartError: Names layers without variables.
    """
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


class WarmInitialState:
    """Warm start of one training.

    Args:
        options: The warm start; None for the factory's values.
        model: The model, with all variables of the training when `match` is called.
        notice: Called with a summary of the report.
    """

    def __init__(
        self, options: WarmStart | None, model: keras.Model, notice: Callable[[str], None]
    ) -> None:
        self._options = options
        self._model = model
        self._notice = notice
        self._values: WarmValues | None = None

    def match(self) -> WarmStartReport | None:
        """Find the values, and return the report; None without a warm start. See `match_warm_start`."""
        if self._options is None:
            return None
        if self._values is None:
            self._values = match_warm_start(self._options, self._model)
            self._notice(self._values.report.summary())
        return self._values.report

    def apply(self) -> None:
        """Copy the values into the model's variables."""
        self.match()
        if self._values is not None:
            self._values.assign()
            self._values = None
