"""Warm start: initial values from a file instead of drawn weights, and the report of their matching.

Nothing here opens a file or imports TensorFlow: a definition contains a `WarmStart`, and the
trial's process reads the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from sweeper.declarations.arguments import with_named_arguments
from sweeper.errors import DefinitionError
from sweeper.support.paths import Location, RunPaths, parse_location
from sweeper.support.shown import shown_value


class Named(Protocol):
    """An object with a name: a `Study`."""

    @property
    def name(self) -> str: ...


class Numbered(Protocol):
    """An object with a number: a `TrialRecord`."""

    @property
    def number(self) -> int: ...


@with_named_arguments
@dataclass(frozen=True)
class WarmStart:
    """Initial values of a model's variables, by name, from an existing file.

    The file is read when a trial starts, not when it is resumed. It must have every variable of the
    model with its shape and dtype, and no other model variables; otherwise the trial fails with
    every mismatch named and nothing assigned. States of random generators are never taken from it.

    Args:
        path: A ``.weights.h5`` or ``.keras`` file of Keras 3, the prefix of an object-based
            TensorFlow checkpoint (``…/ckpt-3``) or the directory with its ``checkpoint`` file, a
            checkpoint of sweeper's, or the directory of one of its trials, also in an object store.
        strict: False takes what fits and reports the rest; at least one variable must fit.
        optimizer: Also take the optimizer's state, except for its learning rate, from a checkpoint of
            sweeper's.
        root: For a TensorFlow checkpoint: the name under which the model was saved, such as
            ``"net"`` for ``tf.train.Checkpoint(net=model)``. Not needed if only one object fits.
        at: For a trial's directory: ``"last"``, or the number of finished epochs at one of its
            checkpoints.
        digest: Required XXH3-128 of the file, 32 hex digits; None for any.

    Raises:
        DefinitionError: An argument has the wrong type.

    Examples:
        >>> sweeper.WarmStart("base.weights.h5", strict=False).file.name
        'base.weights.h5'
    """

    path: str | os.PathLike[str]
    strict: bool = True
    optimizer: bool = False
    root: str | None = None
    at: int | Literal["last"] = "last"
    digest: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise DefinitionError(
                f"WarmStart(path={shown_value(self.path)}); expected the path of a file or directory"
            )
        whole = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at >= 0
        if self.at != "last" and not whole:
            raise DefinitionError(
                f"WarmStart(at={shown_value(self.at)}); expected 'last' or a number of finished epochs, a whole "
                "number from 0"
            )

    @classmethod
    def from_trial(
        cls,
        study: str | Named,
        trial: int | Numbered,
        *,
        at: int | Literal["last"] = "last",
        runs_dir: str | os.PathLike[str] | None = None,
        checkpoints_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> WarmStart:
        """Return a warm start from a trial of this or another study.

        Args:
            study: The study, or its name.
            trial: The trial's number, or its record.
            at: ``"last"`` for the newest checkpoint, or the number of finished epochs: ``at=5`` takes
                the checkpoint at the end of the fifth epoch, which must be kept.
            runs_dir: That study's runs directory; by default ``SWEEPER_RUNS_DIR`` or ``runs``.
            checkpoints_dir: Place of that study's checkpoints, also ``s3://bucket/prefix``; by default
                ``SWEEPER_CHECKPOINTS`` or the runs directory.
            options: As for `WarmStart`: ``optimizer=True`` also takes the optimizer's state.

        Examples:
            >>> begin = sweeper.WarmStart.from_trial("pretraining", 3, at=5, optimizer=True)
            >>> begin.file.name, begin.at
            ('trial-00003', 5)
        """
        from sweeper.declarations.settings import load_settings

        name = study if isinstance(study, str) else study.name
        number = trial if isinstance(trial, int) else trial.number
        settings = load_settings(
            runs_dir=None if runs_dir is None else Path(runs_dir),
            checkpoints=None if checkpoints_dir is None else os.fspath(checkpoints_dir),
        )
        paths = RunPaths(settings.runs_dir, name, settings.checkpoints_location)
        return cls(str(paths.trial_checkpoints(number)), at=at, **options)

    @property
    def file(self) -> Location:
        """Return the path, with ``~`` as the home directory, or the place in an object store."""
        return parse_location(os.fspath(self.path))

    def describe(self) -> dict[str, Any]:
        """Return the options that differ from their defaults as JSON values, with only the name of the file."""
        described: dict[str, Any] = {"from": self.file.name}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name not in ("path", "digest") and value != option.default:
                described[option.name] = value
        return described


def checked_warm_start(given: Any) -> Any:
    """Return ``given`` in the form of a definition: a `WarmStart`, a callable, or None; others are refused."""
    if callable(given):
        return given
    return _parsed(
        given, f"warm_start={shown_value(given)}", "a function trial -> WarmStart, path or None"
    )


def _parsed(given: Any, what: str, otherwise: str) -> WarmStart | None:
    if given is None or isinstance(given, WarmStart):
        return given
    if isinstance(given, str | os.PathLike):
        return WarmStart(given)
    raise DefinitionError(f"{what}; expected a path, a sweeper.WarmStart, or {otherwise}")


def pinned(warm_start: WarmStart | None, digest: str) -> WarmStart | None:
    """Return the warm start with the required ``digest``; empty for none."""
    if warm_start is None or not digest or warm_start.digest is not None:
        return warm_start
    return replace(warm_start, digest=digest)


def warm_start_of(given: Any, trial: Any) -> WarmStart | None:
    """Return the warm start of ``trial``; None without one. A function that returns another type is refused."""
    if not callable(given):
        return _parsed(given, f"warm_start={shown_value(given)}", "None")
    returned = given(trial)
    name = getattr(given, "__qualname__", repr(given))
    origin = f"the warm_start function {name} returned a {type(returned).__name__}"
    return _parsed(returned, origin, "None")


MismatchKind = Literal["missing", "extra", "other shape", "other dtype"]

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A variable that does not fit, by its name in the model, or in the file if it is "extra" there."""

    kind: MismatchKind
    name: str
    what: str

    def __str__(self) -> str:
        if self.kind == "extra":
            return f"{self.name} ({self.what}) is in it, and not in the model"
        return f"{self.name} is {self.what}"


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """Report of a warm start from the file at ``path``, of the format ``kind``, for the model of that name.

    Attributes:
        matched: Each variable that takes a value, with its name in the file; the model's, then the
            optimizer's, whose number is ``optimizer``.
        of: The number of the model's variables, without states of random generators.
        mismatches: All other variables of the model and the file.
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
        return "\n  ".join([head, *self._mismatch_lines()])

    def text(self) -> str:
        """Return the whole report, with each variable that matched."""
        pairs = [f"{name} <- {file_name}" for name, file_name in self.matched]
        return "\n  ".join([self.summary(), *pairs])

    def refusal(self, *, strict: bool) -> str:
        """Return the reason for which the trial cannot start from it."""
        head = f"nothing in the warm start {self.path} ({self.kind}) fits the model {self.model!r}:"
        advice = "Give the model that it was written from"
        if strict:
            head = (
                f"the warm start {self.path} ({self.kind}) does not fit the model {self.model!r} "
                "(nothing was assigned):"
            )
            advice += ", or take what fits (strict=False)"
        return "\n  ".join([head, *self._mismatch_lines()]) + f"\n{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the form that the database stores."""
        return {
            "path": self.path,
            "kind": self.kind,
            "digest": self.digest,
            "of": self.of,
            "optimizer": self.optimizer,
            "matched": dict(self.matched),
            "mismatches": [
                [mismatch.kind, mismatch.name, mismatch.what] for mismatch in self.mismatches
            ],
        }

    def _mismatch_lines(self) -> list[str]:
        lines = [str(mismatch) for mismatch in self.mismatches[:_MOST_SHOWN]]
        more = len(self.mismatches) - len(lines)
        return [*lines, f"and {more} more"] if more else lines
