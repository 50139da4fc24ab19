"""A trial's model, as its record gives it: the record knows where the study is, and no more.

Records are read from a database and know neither a definition nor a path. Those that a study's
results give have a `ModelSource` beside them, which opens both when a model is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sweeper.errors import UsageError

if TYPE_CHECKING:
    import keras

At = Literal["end", "best"] | int
"""One of a trial's models: as training left it, of the best kept epoch, or of a kept step."""


class ModelSource(Protocol):
    """Source of the models of a study's trials."""

    def load_model(self, number: int, at: At, *, accept_changes: bool) -> keras.Model:
        """Load the model of trial ``number``."""
        ...

    def export(
        self,
        number: int,
        path: str | Path,
        format: str,  # noqa: A002 - as the command line calls it
        at: At,
        *,
        accept_changes: bool,
        force: bool = False,
        name: str = "ckpt",
        max_to_keep: int | None = None,
    ) -> ExportReport:
        """Write the model of trial ``number`` to ``path``."""
        ...


class ExportReport(Protocol):
    """Report of an export; see `sweeper.models.exported.Exported`."""

    @property
    def path(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class HasModel:
    """A trial's record, whose model can be had."""

    __slots__ = ()

    number: int
    source: ModelSource | None

    def load_model(self, at: At = "end", *, accept_changes: bool = False) -> keras.Model:
        """Load the trial's model with its trained variables, built by the study's model factory.

        TensorFlow is imported into this process. The factory runs again, with the trial's
        parameters and seeds; a model that only its first batch builds is built on one of the data
        factory's. Random generators of this process are as they were afterwards.

        Args:
            at: ``"end"``: as ``fit`` would have left it, with the weights that `EarlyStopping`
                restored and an optimizer's finished averages; of a complete trial. ``"best"``:
                of the kept checkpoint with the best objective. A number: of the checkpoint
                of that step.
            accept_changes: Go on although the study's code or definition is another one than when
                the trial ran; every variable must fit all the same.

        Returns:
            The model, compiled as the factory compiles it. Its optimizer's variables are new.

        Raises:
            CheckpointError: The trial has no such model; the message lists those that it has.
            DefinitionChangedError: The code or the definition changed since the trial ran.
            RestoreError: A variable does not fit the model that the factory makes now.
            StudyFileError: The study's code is not where it was; the message says how to give it.
            UsageError: The record did not come from a study's results.
        """
        return self._source().load_model(self.number, at, accept_changes=accept_changes)

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
        """Write the trial's model for other tools, and a card that describes it beside it.

        It is written beside ``path`` under another name, read again afresh, compared on a batch
        of the study's data, and only then renamed.

        Args:
            path: Where it goes; ``path.json`` and ``path.md`` are its card.
            format: ``"keras"``, ``"weights"``, ``"savedmodel"``, ``"frozen"``, ``"tf-checkpoint"``
                or ``"safetensors"``.
            at: As for `load_model`.
            force: Replace what is at ``path``.
            accept_changes: As for `load_model`.
            name: Of TensorFlow's checkpoints: ``name-420`` for step 420.
            max_to_keep: With ``"tf-checkpoint"``: write so many of the trial's kept checkpoints,
                the newest up to ``at``, in place of the one.

        Raises:
            ExportError: It cannot be written in this form, or what was written predicts otherwise.
            SweeperError: As for `load_model`.
        """
        return self._source().export(
            self.number,
            path,
            format,
            at,
            accept_changes=accept_changes,
            force=force,
            name=name,
            max_to_keep=max_to_keep,
        )

    def _source(self) -> ModelSource:
        if self.source is None:
            msg = (
                f"this record of trial {self.number} was not read from a study, so its model "
                "cannot be loaded; use a record from study.results(), study.run() or "
                "load_study(name).trials"
            )
            raise UsageError(msg)
        return self.source
