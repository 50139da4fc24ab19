"""Warm start: what a training begins from instead of drawn weights, and the report of what it gave.

Nothing here opens a file or imports TensorFlow: definitions hold a `WarmStart`, and the trial's
process reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from sweeper.errors import DefinitionError
from sweeper.spec.arguments import with_named_arguments
from sweeper.support.paths import RunPaths


@with_named_arguments
@dataclass(frozen=True)
class WarmStart:
    """Values that a model's variables begin with, by name, from a file that is already there.

    The file is read when a trial begins, never when one is resumed. Every variable of the model must
    be in it, in the model's shape and dtype, and nothing else of a model's; otherwise the trial fails
    with every mismatch named and nothing assigned. States of random generators are never taken: they
    are the trial's own.

    Args:
        path: A ``.weights.h5`` or ``.keras`` file, HDF5 weights of Keras 2, a ``.safetensors`` file,
            the prefix of an object-based TensorFlow checkpoint (``…/ckpt-3``) or the directory with
            its ``checkpoint`` file, a checkpoint of sweeper's, or the directory of one of its trials.
        strict: False takes what fits and reports the rest; at least one variable must fit.
        rename: Parts of names in the model, with what the file calls them: ``{"head": "top"}`` looks
            for ``head/kernel`` under ``top/kernel``.
        only: Names, or beginnings of names up to a ``/``, of the variables to take; all by default.
            What the others would be is not looked at.
        optimizer: Take the optimizer's state as well, but for its learning rate, which stays the
            trial's own.
        root: Of a TensorFlow checkpoint: the name that the model was saved under, such as ``"net"``
            for ``tf.train.Checkpoint(net=model)``. Found by itself where only one fits.
        at: Of a trial's directory: ``"last"``, or the step of one of its checkpoints.
        digest: XXH3-128 that the file must have, 32 hex digits; None for any.

    Raises:
        DefinitionError: An argument has the wrong type.

    Examples:
        >>> sweeper.WarmStart("base.weights.h5", only=["encoder"]).strict
        True
    """

    path: str | os.PathLike[str]
    strict: bool = True
    rename: Mapping[str, str] = field(default_factory=dict, hash=False)
    only: Sequence[str] = ()
    optimizer: bool = False
    root: str | None = None
    at: int | Literal["last"] = "last"
    digest: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            msg = f"WarmStart(path={self.path!r}); expected the path of a file or directory"
            raise DefinitionError(msg)
        only = (self.only,) if isinstance(self.only, str) else tuple(self.only)
        object.__setattr__(self, "only", only)
        if not isinstance(self.rename, Mapping):
            msg = f"WarmStart(rename={self.rename!r}); expected a mapping of names to names"
            raise DefinitionError(msg)
        object.__setattr__(self, "rename", dict(self.rename))
        for name in (*self.only, *self.rename, *self.rename.values()):
            if not isinstance(name, str) or not name.strip("/"):
                msg = f"WarmStart was given {name!r} as a variable's name; expected a string"
                raise DefinitionError(msg)
        whole = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at >= 0
        if self.at != "last" and not whole:
            msg = f"WarmStart(at={self.at!r}); expected 'last' or a step, a whole number from 0"
            raise DefinitionError(msg)

    @classmethod
    def from_trial(
        cls,
        study: str,
        number: int,
        *,
        at: int | Literal["last"] = "last",
        runs_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> WarmStart:
        """Return the checkpoint of a trial of another study, or of this one.

        Args:
            study: The study's name.
            number: The trial's.
            at: ``"last"``, or the step of a checkpoint that is kept.
            runs_dir: Where that study's files are; as everywhere (``SWEEPER_RUNS_DIR``, ``runs``).
            options: As for `WarmStart`.
        """
        from sweeper.spec.settings import load_settings

        root = load_settings(runs_dir=None if runs_dir is None else Path(runs_dir)).runs_dir
        return cls(RunPaths(root, study).trial(number), at=at, **options)

    @property
    def file(self) -> Path:
        """Return the path, with ``~`` as the home directory."""
        return Path(self.path).expanduser()

    def describe(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as JSON values; of the path its last part."""
        given: dict[str, Any] = {"from": self.file.name}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("path", "digest") or value in ((), {}, each.default):
                continue
            given[each.name] = list(value) if each.name == "only" else value
        return given


def checked_warm_start(given: Any) -> Any:
    """``given`` as a definition holds it: a `WarmStart`, a callable, or None.

    Raises:
        DefinitionError: It is none of these, and no path.
    """
    if given is None or isinstance(given, WarmStart):
        return given
    if isinstance(given, str | os.PathLike):
        return WarmStart(given)
    if callable(given):
        return given
    msg = (
        f"warm_start={given!r}; expected a path, a sweeper.WarmStart, or a function "
        "trial -> WarmStart, path or None"
    )
    raise DefinitionError(msg)


def pinned(warm_start: WarmStart | None, digest: str) -> WarmStart | None:
    """Return the warm start, of a file that must have ``digest``; empty where its study names none."""
    if warm_start is None or not digest or warm_start.digest is not None:
        return warm_start
    return replace(warm_start, digest=digest)


def warm_start_of(given: Any, trial: Any) -> WarmStart | None:
    """Return what ``trial`` begins from, of what its study was given.

    Raises:
        DefinitionError: The study's function returned something else.
    """
    if given is None or isinstance(given, WarmStart):
        return given
    returned = given(trial)
    if returned is None or isinstance(returned, WarmStart):
        return returned
    if isinstance(returned, str | os.PathLike):
        return WarmStart(returned)
    name = getattr(given, "__qualname__", repr(given))
    msg = (
        f"the warm_start function {name} returned a {type(returned).__name__}; expected a "
        "sweeper.WarmStart, a path, or None"
    )
    raise DefinitionError(msg)


MismatchKind = Literal["missing", "extra", "other shape", "other dtype"]

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One variable that does not fit.

    Attributes:
        kind: "missing": the model's, and not in the file. "extra": in the file, and not the model's.
        name: The variable's; of an extra one the file's name.
        what: What was seen and expected.
    """

    kind: MismatchKind
    name: str
    what: str

    def __str__(self) -> str:
        if self.kind == "extra":
            return f"{self.name} ({self.what}) is in it, and not in the model"
        return f"{self.name} is {self.what}"


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """Report of a warm start.

    Attributes:
        path: The file; a checkpoint's directory or prefix.
        kind: What it is, for a person.
        digest: XXH3-128 of its content.
        model: The model's name.
        matched: Each variable that takes a value, with the file's name for it; the model's, then the
            optimizer's.
        of: How many variables the model has, without states of random generators.
        mismatches: All others, and what the file has more.
        optimizer: How many of ``matched`` are the optimizer's.
    """

    path: str
    kind: str
    digest: str
    model: str
    matched: tuple[tuple[str, str], ...]
    of: int
    mismatches: tuple[Mismatch, ...]
    optimizer: int = 0

    def summary(self) -> str:
        """Return one line, and one for each mismatch."""
        optimizer = f" and {self.optimizer} of its optimizer" if self.optimizer else ""
        head = (
            f"begins from {self.path} ({self.kind}, digest {self.digest[:8]}): "
            f"{len(self.matched) - self.optimizer} of the model's {self.of} variables{optimizer}"
        )
        return "\n  ".join([head, *self._shown()])

    def text(self) -> str:
        """Return the whole report, with each variable that matched."""
        pairs = [f"{name} <- {theirs}" for name, theirs in self.matched]
        return "\n  ".join([self.summary(), *pairs])

    def refusal(self, *, strict: bool) -> str:
        """Why the trial cannot begin from it."""
        head = (
            f"the warm start {self.path} ({self.kind}) does not fit the model {self.model!r} "
            "(nothing was assigned):"
            if strict
            else f"nothing in the warm start {self.path} ({self.kind}) fits the model {self.model!r}:"
        )
        advice = (
            "Give the model that it was written from, or map the names that differ (rename={…})"
        )
        if strict:
            advice += ", the part to take (only=[…]), or take what fits (strict=False)"
        return "\n  ".join([head, *self._shown()]) + f"\n{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return what the database keeps of it."""
        return {
            "path": self.path,
            "kind": self.kind,
            "digest": self.digest,
            "of": self.of,
            "optimizer": self.optimizer,
            "matched": dict(self.matched),
            "mismatches": [[each.kind, each.name, each.what] for each in self.mismatches],
        }

    def _shown(self) -> list[str]:
        shown = [str(each) for each in self.mismatches[:_MOST_SHOWN]]
        more = len(self.mismatches) - len(shown)
        return [*shown, f"and {more} more"] if more else shown


def digests_of(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what of a report a later attempt is compared by: the file, and its digest."""
    return {str(report["path"]): str(report["digest"])}
