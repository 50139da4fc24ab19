"""Access to a trial's model from its record.

Records contain neither the study's definition nor its paths. Records of a study's results have a
`ModelSource`, which opens both when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sweeper.errors import UsageError

if TYPE_CHECKING:
    import keras

Verified = Literal["best", "all"] | int
"""Trials to verify: the best one, all finished ones, or that of a number."""

At = Literal["end", "best"] | int
"""One of a trial's models: the end model, that of the best kept epoch, or that of a kept step."""


@dataclass(frozen=True)
class ExportOptions:
    """Request to write a trial's model; see `HasModel.export` for the fields."""

    path: Path
    format: str
    at: At = "end"
    force: bool = False
    accept_changes: bool = False
    name: str = "ckpt"
    max_to_keep: int | None = None


class ModelSource(Protocol):
    """Interface of the source of the models of a study's trials."""

    def load_model(self, number: int, at: At, *, accept_changes: bool) -> keras.Model:
        """Load the model of trial ``number``."""

    def export(self, number: int, options: ExportOptions) -> ExportReport:
        """Write the model of trial ``number``."""

    def verify(self, which: Verified, *, interrupt: bool, seed: int | None) -> Any:
        """Replay finished trials; see `sweeper.Study.verify` for the options and the result."""

    def ensemble(self, numbers: Sequence[int], path: str | PathLike[str] | None) -> keras.Model:
        """Return the mean of the models of these trials."""


class ExportReport(Protocol):
    """Interface of the report of an export; see `sweeper.models.exported.Exported`."""

    @property
    def path(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class HasModel:
    """Base class of records of trials whose models can be loaded."""

    __slots__ = ()

    number: int
    source: ModelSource | None

    def load_model(self, at: At = "end", *, accept_changes: bool = False) -> keras.Model:
        """Load the trial's model with its trained variables and optimizer, built by the study's model factory.

        TensorFlow is imported into this process. The factory runs again, with the trial's
        parameters and seeds; a model that is built by its first batch, and optimizers that an own
        training step builds, get one from the data factory.
        Random generators of this process are restored afterwards.

        Args:
            at: ``"end"``: the model as ``fit`` would have left it, with the weights that
                `EarlyStopping` restored and an optimizer's final averages; for complete trials.
                ``"best"``: that of the kept checkpoint with the best objective. A number: that of
                the kept checkpoint of this step.
            accept_changes: Whether to continue if the study's code or definition has changed since
                the trial ran; every variable must still fit.

        Returns:
            The model, compiled by the factory. ``fit`` continues its training, with the optimizer's slots,
            iterations and rate. A warning names an optimizer that now has other variables and
            starts from its initial state.

        Raises:
            CheckpointError: The trial has no such model; the message lists the existing ones.
            DefinitionChangedError: The code or the definition changed since the trial ran.
            RestoreError: A variable does not fit the model that the factory builds now.
            StudyFileError: The study's file was moved; the message says how to name it.
            UsageError: The record is not from a study's results.
        """
        return self.model_source().load_model(self.number, at, accept_changes=accept_changes)

    def export(
        self,
        path: str | Path,
        format: str,  # noqa: A002 - as the command line calls it
        *,
        at: At = "end",
        force: bool = False,
        accept_changes: bool = False,
        name: str = "ckpt",
        max_to_keep: int | None = None,
    ) -> ExportReport:
        """Write the trial's model for other tools, with a description of its origin.

        The model is written under a temporary name, and then renamed to ``path``.

        Args:
            path: Path of the model; ``path.json`` is its description.
            format: ``"keras"``, ``"weights"``, ``"savedmodel"``, ``"frozen"``, ``"tf-checkpoint"``
                or ``"safetensors"``.
            at: See `load_model`.
            force: Whether to replace an existing file at ``path``.
            accept_changes: See `load_model`.
            name: Name of TensorFlow's checkpoints: ``name-420`` for step 420.
            max_to_keep: With ``"tf-checkpoint"``, the number of kept checkpoints to write: the newest
                ones up to ``at``. None for one.

        Raises:
            ExportError: It cannot be written in this format.
            SweeperError: See `load_model`.
        """
        target = Path(path).absolute()
        options = ExportOptions(target, format, at, force, accept_changes, name, max_to_keep)
        return self.model_source().export(self.number, options)

    def verify(self, *, interrupt: bool = False, seed: int | None = None) -> Any:
        """Replay the finished trial in separate processes, compare every bit, and store the verdict.

        Args:
            interrupt: Whether the replay is killed at a random step and resumed.
            seed: Seed of that step; None for a random one.

        Returns:
            The `TrialVerification`: its text is what `sweeper verify` prints, ``verdict`` is ``"holds"``,
            ``"differs"`` or, for a study with ``deterministic=False``, ``"unpromised"``.

        Raises:
            DefinitionChangedError: The study's definition or code has changed since the trial ran.
            StudyFileError: The study's code is in no file that this process knows; the message says what to do.
            SweeperError: The trial is not finished, or its replay could not be run.
        """
        [verification] = (
            self.model_source().verify(self.number, interrupt=interrupt, seed=seed).trials
        )
        return verification

    def model_source(self) -> ModelSource:
        """Return the source of its model; refuse a record that is not from a study."""
        if self.source is None:
            raise UsageError(
                f"this record of trial {self.number} was not read from a study, so its model "
                "cannot be loaded; use a record from study.results(), study.run() or "
                "load_study(name).trials"
            )
        return self.source
