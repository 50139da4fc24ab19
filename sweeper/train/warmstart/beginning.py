"""Warm start of a training: variables are matched, compared, and then assigned.

All variables are compared before any is assigned, so the model gets all requested values, or the trial
fails with all mismatches. Values are copied into the existing variables.

The reader of a format is imported only for a file of this format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from sweeper.errors import CheckpointError, WarmStartError
from sweeper.spec.warm_start import Mismatch, MismatchKind, WarmStart, WarmStartReport
from sweeper.train.warmstart.source import (
    Candidate,
    LocatedFile,
    Matched,
    Stored,
    WarmStartSource,
    locate,
)


def open_source(located: LocatedFile) -> WarmStartSource:
    """Open a file.

    Raises:
        WarmStartError: It is damaged, or has another content than its format.
        CheckpointError: It cannot be read.
    """
    path = located.path
    try:
        match located.format:
            case "hdf5":
                from sweeper.train.warmstart.weights_h5 import HDF5Weights

                return HDF5Weights(path, str(path))
            case "keras":
                from sweeper.train.warmstart.weights_h5 import KerasFile

                return KerasFile(path)
            case "safetensors":
                from sweeper.train.warmstart.flat_files import SafetensorsFile

                return SafetensorsFile(path)
            case "sweeper":
                from sweeper.train.warmstart.flat_files import SweeperCheckpoint

                return SweeperCheckpoint(path)
            case "tf-checkpoint":
                from sweeper.train.warmstart.tf_checkpoint import TensorFlowCheckpoint

                return TensorFlowCheckpoint(path)
    except OSError as error:
        msg = f"the warm start {path} cannot be read: {error}; check the disk, then resume"
        raise CheckpointError(msg) from error


_MOST_NAMES = 3


@dataclass(frozen=True)
class WarmValues:
    """A matched warm start, before it is assigned."""

    report: WarmStartReport
    _source: WarmStartSource = field(repr=False)
    _pairs: tuple[tuple[Any, str], ...] = field(repr=False)
    _located: LocatedFile = field(repr=False)

    def assign(self) -> None:
        """Copy the values into the variables, and close the file.

        Raises:
            WarmStartError: The file is damaged. The trial must end, because some variables were assigned.
            CheckpointError: The file was changed while it was read.
        """
        try:
            for variable, key in self._pairs:
                variable.assign(self._source.read(key))
        finally:
            self._source.close()
        if self._located.digest() != self.report.digest:
            msg = f"the warm start {self._located.path} was changed while it was read; start again"
            raise CheckpointError(msg)


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
    source = open_source(located)
    try:
        comparison = _Comparison(options, source)
        matched = source.match(model, options)
        comparison.compare(_chosen(matched, options, located), complete=not options.only)
        taken = len(comparison.pairs)
        if options.optimizer:
            comparison.compare(_optimizer_of(model, source), complete=True)
        report = WarmStartReport(
            path=str(located.path),
            kind=source.kind,
            digest=digest,
            model=model.name,
            matched=tuple(comparison.names),
            of=sum(1 for _ in matched.candidates),
            mismatches=tuple(comparison.mismatches),
            optimizer=len(comparison.pairs) - taken,
        )
    except BaseException:
        source.close()
        raise
    if (options.strict and report.mismatches) or not taken:
        source.close()
        raise WarmStartError(report.refusal(strict=options.strict))
    return WarmValues(report, source, tuple(comparison.pairs), located)


class _Comparison:
    """Comparison of the shapes and dtypes of matched variables."""

    def __init__(self, options: WarmStart, source: WarmStartSource) -> None:
        self._options = options
        self._source = source
        self.pairs: list[tuple[Any, str]] = []
        self.names: list[tuple[str, str]] = []
        self.mismatches: list[Mismatch] = []

    def compare(self, matched: Matched, *, complete: bool) -> None:
        """Compare ``matched``; with ``complete``, further values in the file are mismatches."""
        for each in matched.candidates:
            if each.key is None:
                self.mismatches.append(Mismatch("missing", each.name, _why_missing(each)))
                continue
            shown = matched.shown.get(each.key, each.key)
            dtype = keras.backend.standardize_dtype(each.variable.dtype)
            own = Stored(tuple(each.variable.shape), dtype)
            stored = self._source.stored(each.key)
            if stored == own:
                self.pairs.append((each.variable, each.key))
                self.names.append((each.name, shown))
            else:
                what = f"{own}, and {stored} in it ({shown})"
                kind: MismatchKind = "other dtype" if stored.shape == own.shape else "other shape"
                self.mismatches.append(Mismatch(kind, each.name, what))
        for key, name in matched.extra.items() if complete else ():
            self.mismatches.append(Mismatch("extra", name, str(self._source.stored(key))))


def _chosen(matched: Matched, options: WarmStart, located: LocatedFile) -> Matched:
    """Return the candidates that ``only`` selects; all if it is empty."""
    if not options.only:
        return matched
    chosen, used = [], set()
    for each in matched.candidates:
        names = {each.name, each.name.partition("/")[2], *each.looked_for}
        plain = {"/".join(p.lstrip("_") for p in name.split("/")) for name in names}
        wanted = [o for o in options.only if any(_begins(n, o) for n in names | plain)]
        used.update(wanted)
        if wanted:
            chosen.append(each)
    unused = [name for name in options.only if name not in used]
    if unused:
        some = ", ".join(each.name for each in matched.candidates[:_MOST_NAMES])
        msg = (
            f"the warm start {located.path} has only={unused!r}, but no variable of the model has "
            f"a name that begins so; its variables are {some}…"
        )
        raise WarmStartError(msg)
    return replace(matched, candidates=tuple(chosen))


def _optimizer_of(model: keras.Model, source: WarmStartSource) -> Matched:
    """Return the optimizer's variables without its learning rate."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        msg = (
            f"optimizer=True: the model {model.name!r} has no optimizer with variables before its "
            "first step; leave it out (optimizer=False)"
        )
        raise WarmStartError(msg)
    matched = source.match_optimizer(optimizer)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = inner._learning_rate
    kept = tuple(each for each in matched.candidates if each.variable is not rate)
    return replace(matched, candidates=kept)


def _check_built(model: keras.Model) -> None:
    """Refuse a model whose variables are created by the first batch.

    Raises:
        WarmStartError: Names layers without variables.
    """
    inner = model._flatten_layers(include_self=False)
    late = [layer.name for layer in inner if not layer.built]
    if not model.variables or (model.run_eagerly and late):
        named = ", ".join(map(repr, late[:_MOST_NAMES])) or repr(model.name)
        msg = (
            f"the model {model.name!r} has no variables yet in {named}, so a warm start would "
            "have no effect there; build it in the model factory: model.build(shape), or call it "
            "on a batch"
        )
        raise WarmStartError(msg)


def _why_missing(each: Candidate) -> str:
    if each.reason:
        return each.reason
    if not each.looked_for:
        return "not in it"
    return f"not in it; looked for {' or '.join(each.looked_for[:_MOST_NAMES])}"


def _begins(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning.rstrip('/')}/")


class WarmBeginning:
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
