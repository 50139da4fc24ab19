"""A training's beginning from a warm start: variables matched once, all compared, then assigned.

All is compared before anything is assigned: a model is begun with all that was asked for, or the
trial fails with every mismatch named. Values are copied into the variables that are there; nothing
of the file's is held by the model afterwards.

Readers of the formats are imported only for a file of their format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras

from sweeper.errors import CheckpointError, WarmStartError
from sweeper.spec.warm_start import Mismatch, WarmStart, WarmStartReport
from sweeper.train.warmstart.source import (
    Candidate,
    LocatedFile,
    Matched,
    Stored,
    WarmStartSource,
    locate,
)


def open_source(located: LocatedFile) -> WarmStartSource:
    """Return the file, opened.

    Raises:
        WarmStartError: It is damaged, or not what it seemed to be.
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
    """A warm start that fits, before it is applied.

    Attributes:
        report: What fits and what does not.
    """

    report: WarmStartReport
    _source: WarmStartSource = field(repr=False)
    _pairs: tuple[tuple[Any, str], ...] = field(repr=False)
    _located: LocatedFile = field(repr=False)

    def assign(self) -> None:
        """Copy the values into the variables, and let go of the file.

        Raises:
            WarmStartError: It is damaged; the trial must not go on, since some have new values.
            CheckpointError: It was changed meanwhile.
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
    """Find the values of the model's variables in what ``options`` names.

    Args:
        options: The trial's.
        model: Built, with every variable that training has.

    Raises:
        WarmStartError: The model has variables still to be made; the file is not there, is damaged or
            of another kind; or does not fit.
        CheckpointError: It cannot be read, or is not what it was when the study was created.
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
        _check_fit(report, taken, strict=options.strict)
    except BaseException:
        source.close()
        raise
    return WarmValues(report, source, tuple(comparison.pairs), located)


class _Comparison:
    """Comparison of matched variables: shapes and types."""

    def __init__(self, options: WarmStart, source: WarmStartSource) -> None:
        self._options = options
        self._source = source
        self.pairs: list[tuple[Any, str]] = []
        self.names: list[tuple[str, str]] = []
        self.mismatches: list[Mismatch] = []

    def compare(self, matched: Matched, *, complete: bool) -> None:
        """Add what is in ``matched``; with ``complete``, what the file has more is a mismatch."""
        for each in matched.candidates:
            if each.key is None:
                self.mismatches.append(Mismatch("missing", each.name, _why_missing(each)))
                continue
            shown = matched.shown.get(each.key, each.key)
            stored, own = self._source.stored(each.key), _stored_as(each.variable)
            if stored.shape != own.shape:
                what = f"{own}, and {stored} in it ({shown})"
                self.mismatches.append(Mismatch("other shape", each.name, what))
            elif stored.dtype != own.dtype:
                what = f"{own}, and {stored} in it ({shown})"
                self.mismatches.append(Mismatch("other dtype", each.name, what))
            else:
                self.pairs.append((each.variable, each.key))
                self.names.append((each.name, shown))
        for key, name in matched.extra.items() if complete else ():
            self.mismatches.append(Mismatch("extra", name, str(self._source.stored(key))))


def _chosen(matched: Matched, options: WarmStart, located: LocatedFile) -> Matched:
    """Return what ``only`` leaves; all where it names nothing."""
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
    return Matched(tuple(chosen), matched.extra, matched.shown)


def _optimizer_of(model: keras.Model, source: WarmStartSource) -> Matched:
    """Return the optimizer's variables, but for its learning rate."""
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
    extra = dict(matched.extra)
    return Matched(kept, extra, matched.shown)


def _check_fit(report: WarmStartReport, taken: int, *, strict: bool) -> None:
    """Refuse what does not fit as it was asked for.

    Raises:
        WarmStartError: It does not; all mismatches are named.
    """
    if (strict and report.mismatches) or not taken:
        raise WarmStartError(report.refusal(strict=strict))


def _check_built(model: keras.Model) -> None:
    """Refuse a model whose variables a first batch would still make.

    Raises:
        WarmStartError: It is one; its layers are named.
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


def _stored_as(variable: Any) -> Stored:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return Stored(tuple(variable.shape), dtype)


def _begins(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning.rstrip('/')}/")


class WarmBeginning:
    """Initial values of one training.

    Args:
        options: Of the training; None where it begins with what its factory made.
        model: Its model, with every variable that training has by the time of `match`.
        notice: Called with what fits and what does not.
    """

    def __init__(
        self, options: WarmStart | None, model: keras.Model, notice: Callable[[str], None]
    ) -> None:
        self._options = options
        self._model = model
        self._notice = notice
        self._values: WarmValues | None = None

    def match(self) -> WarmStartReport | None:
        """Find the values, and assign nothing yet; None where there is nothing to begin from.

        Raises:
            WarmStartError: The file is not there, is of another kind, or does not fit.
            CheckpointError: It cannot be read, or has changed.
        """
        if self._options is None:
            return None
        if self._values is None:
            self._values = match_warm_start(self._options, self._model)
            self._notice(self._values.report.summary())
        return self._values.report

    def apply(self) -> None:
        """Copy the values into the model's variables; errors as `match` has them."""
        self.match()
        if self._values is not None:
            self._values.assign()
            self._values = None
