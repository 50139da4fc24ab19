"""Requests to continue trials that have run: `branch` and `extend` as methods of a study."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.errors import UsageError
from sweeper.records.lengths import Extension
from sweeper.spec.arguments import checked_whole

if TYPE_CHECKING:
    from sweeper.records.results import TrialRecord
    from sweeper.spec.space import CategoricalChoice
    from sweeper.support.paths import Location


class CanBranch:
    """Base class of `Study` and `StoredStudy` with the method `branch`."""

    name: str

    def _kept_in(self) -> tuple[str | None, Path | None, Location | None]:
        """Return the database, runs directory and checkpoints URL that apply unless a call names others."""
        return None, None, None

    def branch(
        self,
        trial: int,
        *,
        params: Mapping[str, CategoricalChoice] | None = None,
        epoch: int | None = None,
        step: int | None = None,
        epochs: int | None = None,
        storage: str | None = None,
        runs_dir: str | Path | None = None,
        checkpoints_dir: str | Path | None = None,
    ) -> TrialRecord:
        """Add a trial that begins at a checkpoint of another one; `resume` runs it.

        The model is built with the new parameters; weights, the optimizer's slots, random state
        and the position in the data come from the checkpoint. With no parameter changed, the branch
        ends bit-identical to its parent.

        Args:
            trial: The parent's number.
            params: The parameters that differ from the parent's.
            epoch: Begin after this many epochs; the newest checkpoint by default.
            step: Begin at the checkpoint of this step, instead.
            epochs: Total number of epochs, including those before the checkpoint; the parent's by
                default.
            storage: A database URL, as in `Study.run`.
            runs_dir: Where files go, as in `Study.run`.
            checkpoints_dir: Where checkpoints go, as in `Study.run`.

        Returns:
            The branch, not yet run.

        Raises:
            UnknownStudyError: The study has not been run yet, or there is no such trial.
            UsageError: Both ``epoch`` and ``step`` were given, or no epoch is left to train.
            ParameterError: The parent has no such parameter, or a value is of another type.
            CheckpointError: The parent has no such checkpoint; the message lists those that it has.
        """
        from sweeper.api.branching import BranchRequest, branch_trial
        from sweeper.db.database import Database
        from sweeper.db.repository import Repository
        from sweeper.spec.settings import load_settings
        from sweeper.support.paths import RunPaths, absolute_location

        own = self._kept_in()
        checkpoints = own[2] if checkpoints_dir is None else checkpoints_dir
        settings = load_settings(
            storage=storage or own[0],
            runs_dir=own[1] if runs_dir is None else Path(runs_dir),
            checkpoints=None if checkpoints is None else str(checkpoints),
        )
        paths = RunPaths(
            settings.runs_dir.absolute(),
            self.name,
            absolute_location(settings.checkpoints_location),
        )
        with Database.open(settings.storage, create=False) as database:
            request = BranchRequest(
                self.name, trial, epoch=epoch, step=step, given=dict(params or {}), epochs=epochs
            )
            branched = branch_trial(Repository(database), paths, request)
        for remark in branched.remarks:
            warnings.warn(remark, UserWarning, stacklevel=2)
        return branched.trial


def asked_extension(
    epochs: int | Extension | None, trials: Sequence[int] | None = None, best: int | None = None
) -> Extension | None:
    """Return the request as one record; None if no extension is requested.

    Raises:
        DefinitionError: A number is not whole, or is too small.
        UsageError: Both ``trials`` and ``best`` are given.
    """
    if epochs is None or isinstance(epochs, Extension):
        return epochs
    if trials is not None and best is not None:
        msg = "both trials= and best= were given; give one of them"
        raise UsageError(msg)
    return Extension(
        checked_whole(epochs, "epochs", least=1),
        None
        if trials is None
        else tuple(checked_whole(number, "trials", least=0) for number in trials),
        None if best is None else checked_whole(best, "best", least=1),
    )
