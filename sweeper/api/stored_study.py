"""Stored study, found by its name: its results and the models of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sweeper.api.models import StudyModels
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.observing import checked_observations
from sweeper.definition.definition import StudyDefinition
from sweeper.errors import DatabaseUnavailableError, StudyFileError, UnknownStudyError
from sweeper.records.results import StudyResults, StudyStatus, TrialRecord
from sweeper.support.shown import shown_url

if TYPE_CHECKING:
    from sweeper.checks.verify import StudyVerification


@dataclass(frozen=True)
class StoredStudy:
    """A study in a database; `load_study` returns it for a study's name.

    Only `definition`, `run`, `resume` and `extend` import the study's code; all else is read from
    the database.

    Attributes:
        name: Its name there.
        models: Access to its trials' models.

    Examples:
        >>> stored = sweeper.load_study("digits")  # by its name: its code is not imported
        >>> stored.status().complete
        2
        >>> model = stored.best.load_model(at="best")
    """

    name: str
    models: StudyModels

    def __str__(self) -> str:
        """Return the study's progress and its database in one line."""
        where = shown_url(self.models.storage)
        try:
            return f"{self.status()}; in {where}"
        except (DatabaseUnavailableError, UnknownStudyError):
            return f"{self.name}: not found in {where}"

    def results(self) -> StudyResults:
        """Return its present results.

        Raises:
            UnknownStudyError: The study no longer exists.
            DatabaseUnavailableError: There is no database.
        """
        with Database.open(self.models.storage, create=False) as database:
            results = Repository(database).results(self.name)
        return results.with_models(self.models)

    def status(self) -> StudyStatus:
        """Return how many trials are in each state; see `results` for errors."""
        return self.results().status

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """Return every trial that has started, by its number."""
        return self.results().trials

    @property
    def best(self) -> TrialRecord:
        """Return the complete trial with the best objective.

        Raises:
            LookupError: No trial is complete yet, or there are several objectives.
        """
        return self.results().best

    @property
    def pareto(self) -> tuple[TrialRecord, ...]:
        """Return the complete trials that no other beats; see `StudyResults.pareto`."""
        return self.results().pareto

    @property
    def definition(self) -> StudyDefinition:
        """Return the study's definition, imported from its file.

        Raises:
            StudyFileError: The file is missing; the message names the argument for its path.
            StudyImportError: It raised while it was imported.
        """
        with Database.open(self.models.storage, create=False) as database:
            row = Repository(database).study(self.name)
        return self.models.load_definition(row)

    def run(self, **options: Any) -> StudyResults:
        """Run the study as `Study.run` does, with this study's database and directories.

        Args:
            options: The arguments of `Study.run`.

        Raises:
            StudyFileError: The file is missing, or has no `Study`.
            SweeperError: As for `Study.run`.
        """
        return self._call("run", **options)

    def extend(self, epochs: int, **options: Any) -> StudyResults:
        """Extend the study as `Study.extend` does, with this study's database and directories.

        Args:
            epochs: Total number of epochs, finished ones included.
            options: The other arguments of `Study.extend`.
        """
        return self._call("extend", epochs=epochs, **options)

    def confirm(self, **options: Any) -> StudyResults:
        """Train the leading configurations again as `Study.confirm` does, with this study's database.

        Args:
            options: The arguments of `Study.confirm`.
        """
        return self._call("confirm", **options)

    def observe(
        self,
        observations: Sequence[Mapping[str, Any]],
        *,
        source: str = "Python",
        clear: bool = False,
    ) -> int:
        """Give results of other trainings to the sampler, for the trials that have not begun.

        They are no trials of the study: they are never the best one, and count for no total.

        Args:
            observations: One mapping for each, as in ``Study(observe=…)``.
            source: Its name in `StudyStatus.observations`.
            clear: Whether the earlier ones are not used any more.

        Returns:
            The number of new ones; the same ones from the same source count once.

        Raises:
            DefinitionError: A value is missing or not finite, or the sampler uses no results.
            UsageError: No trial has suggested a parameter that an observation has.
        """
        with Database.open(self.models.storage, create=False) as database:
            repository = Repository(database)
            row = repository.study(self.name)
            checked = checked_observations(
                observations, row.objectives, row.definition.get("sampler")
            )
            return repository.observe(self.name, checked, source, clear=clear).added

    def verify(
        self,
        *,
        trial: int | Literal["best", "all"] = "best",
        **options: Any,
    ) -> StudyVerification:
        """Replay finished trials as `Study.verify` does, with this study's database and directories.

        Args:
            trial: A trial's number; ``"best"``, by default, or ``"all"`` finished ones.
            options: The other arguments of `Study.verify`.

        Raises:
            StudyFileError: The study was defined in a notebook, or its file is missing or differs.
        """
        return self.models.verify(trial, **options)

    def _call(self, name: str, **options: Any) -> StudyResults:
        """Call a method of the `Study` with this study's database and directories."""
        definition: Any = self.definition
        if not hasattr(definition, "run"):
            raise StudyFileError(
                f"study {self.name!r} is a bare StudyDefinition; write sweeper.Study(…) instead"
            )
        models = self.models
        here = {"storage": models.storage, "runs_dir": models.runs_dir}
        here |= {"checkpoints_dir": models.checkpoints}
        results: StudyResults = getattr(definition, name)(**{**here, **options})
        return results

    def resume(self, **options: Any) -> StudyResults:
        """Resume the study where it was interrupted; a synonym of `run`.

        Args:
            options: The arguments of `Study.run`.
        """
        return self.run(**options)


def is_stored(name: str, storage: str) -> bool:
    """Return whether there is a database at ``storage``, and a study of this name in it."""
    try:
        with Database.open(storage, create=False) as database:
            return name in Repository(database).study_names()
    except DatabaseUnavailableError as error:
        if error.passing:
            raise
        return False
