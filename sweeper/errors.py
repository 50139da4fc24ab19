"""Every error that sweeper raises on purpose, as one tree.

::

    SweeperError
    ├── UsageError              the command or call names something that is not there      exit 2
    │   ├── StudyFileError          no such file, no Study in it, or two and no name
    │   └── UnknownStudyError       no study (or trial) of that name in the database
    ├── DefinitionError         the study's definition cannot be run                       exit 1
    │   ├── StudyImportError        the study's module raised while it was imported
    │   ├── DefinitionChangedError  the stored study was defined otherwise
    │   └── ParameterError          a parameter asked for twice, with two distributions
    ├── TrialError              one trial failed; the study goes on
    │   ├── FactoryError            a factory returned what cannot be trained
    │   ├── IndependenceError       it shares what training changes with something else
    │   ├── ObjectiveError          the objective names a metric that the model lacks
    │   ├── DataError               data whose lengths differ, or that has no such form
    │   ├── NonFiniteError          the loss or the objective is NaN or infinite
    │   └── UncapturableError       state that no checkpoint could bring back, by name
    ├── CheckpointError         a checkpoint cannot be written or read                     exit 1
    │   ├── CorruptCheckpointError  its files do not match its manifest
    │   ├── ForeignCheckpointError  it, or its directory, is another study's
    │   └── RestoreError            it does not fit the model: every mismatch is named
    ├── StorageError            the database                                               exit 1
    │   ├── DatabaseUnavailableError  cannot be opened or reached
    │   ├── DatabaseVersionError      was written by another version of sweeper or Optuna
    │   └── SupersededError           this attempt is no longer the trial's current one
    ├── ExecutionError          a worker, server or trial process failed                   exit 1
    ├── ExactnessError          an audit found that a resumed trial ends otherwise         exit 4
    ├── MixedStudyError         a trial ran under another code than its study's            exit 4
    └── Interrupted             stopped on request; everything is resumable                exit 130

Each message says what was seen, what was expected, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CorruptCheckpointError",
    "DataError",
    "DatabaseUnavailableError",
    "DatabaseVersionError",
    "DefinitionChangedError",
    "DefinitionError",
    "ExactnessError",
    "ExecutionError",
    "FactoryError",
    "ForeignCheckpointError",
    "IndependenceError",
    "Interrupted",
    "MixedStudyError",
    "NonFiniteError",
    "ObjectiveError",
    "ParameterError",
    "RestoreError",
    "StorageError",
    "StudyFileError",
    "StudyImportError",
    "SupersededError",
    "SweeperError",
    "TrialError",
    "UncapturableError",
    "UnknownStudyError",
    "UsageError",
]


class SweeperError(Exception):
    """The root of the tree. ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UsageError(SweeperError):
    """The command or call names something that is not there, or cannot be understood."""

    exit_code = 2


class StudyFileError(UsageError):
    """``FILE[:NAME]`` leads to no study: no such file, no Study in it, or two and no name."""


class UnknownStudyError(UsageError):
    """The database holds no study, or no trial, of that name."""


class DefinitionError(SweeperError):
    """The study's definition cannot be run as it is written."""


class StudyImportError(DefinitionError):
    """The study's module raised while it was imported.

    ``traceback`` is the user's own traceback, starting in their file.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class DefinitionChangedError(DefinitionError):
    """The database holds a study of this name that was defined otherwise."""


class ParameterError(DefinitionError):
    """A parameter was asked for again with another distribution, or has an impossible one."""


class TrialError(SweeperError):
    """One trial failed. The error is kept with the trial, and the study goes on."""


class FactoryError(TrialError):
    """A factory returned something that cannot be trained."""


class IndependenceError(TrialError):
    """A trial's model, data or callbacks hold something that was there before the trial.

    ``sharings`` has each of them, as `sweeper.independence.aliases.Sharing`: ``first_path`` is
    where the trial has it, ``second_path`` what else does. A run ends with it, and with 4, where
    the first trial of a new study would be refused; after that it fails its own trial only.
    """

    exit_code = 4

    def __init__(self, message: str, sharings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.sharings = sharings


class ObjectiveError(TrialError):
    """The objective names a metric that the model does not report."""


class DataError(TrialError):
    """The data have lengths that differ, or a form that cannot be read."""


class NonFiniteError(TrialError):
    """The loss or the objective became NaN or infinite."""


class UncapturableError(TrialError):
    """Something that training changes could not be brought back by any checkpoint."""


class CheckpointError(SweeperError):
    """A checkpoint cannot be written or read."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's files do not match its manifest."""


class ForeignCheckpointError(CheckpointError):
    """A checkpoint, or a directory of such, belongs to another study or training.

    Nothing in it was used, and nothing was written there.
    """


class RestoreError(CheckpointError):
    """A checkpoint does not fit what it is restored into; every mismatch is named."""


class StorageError(SweeperError):
    """The database refused or lost something."""


class DatabaseUnavailableError(StorageError):
    """The database cannot be opened or reached.

    ``passing`` is True where that may be over soon: the server is away, or busy.
    """

    passing = False


class DatabaseVersionError(StorageError):
    """The database was written by another version of sweeper or of Optuna."""


class SupersededError(StorageError):
    """A write by an attempt that is no longer its trial's current attempt."""


class ExecutionError(SweeperError):
    """A worker, the warm server or a trial process failed outside the user's code."""


class ExactnessError(SweeperError):
    """An audit found that a trial which is resumed does not go on as it did.

    It names the trial, the interval and what differs. Every trial is checkpointed; ``run
    --accept-inexact`` goes on, and every reading verb says so from then on.
    """

    exit_code = 4


class MixedStudyError(SweeperError):
    """A trial cannot be verified because it ran under another definition or code than its study's."""

    exit_code = 4


class Interrupted(SweeperError):  # noqa: N818 - an outcome, not a fault
    """The run was stopped on request. Everything it did is kept and can be resumed."""

    exit_code = 130
