"""Every error that sweeper raises on purpose, as one tree.

::

    SweeperError
    ├── UsageError              the command or call names something that is not there      exit 2
    │   ├── StudyFileError          no such file, no Study in it, or two and no name
    │   └── UnknownStudyError       no study (or trial) of that name in the database
    ├── DefinitionError         the study's definition cannot be run                       exit 1
    │   ├── StudyImportError        the study's module raised while it was imported
    │   ├── DefinitionChangedError  the stored study was defined otherwise
    │   └── ParameterError          a parameter suggested twice, with two distributions
    ├── TrialError              one trial failed; the study continues, unless all would fail (of_study)
    │   ├── FactoryError            a factory returned what cannot be trained
    │   ├── IndependenceError       it shares what training changes with something else
    │   ├── ObjectiveError          the objective names a metric that the model lacks
    │   ├── DataError               data whose lengths differ, or that has no such form
    │   ├── NonFiniteError          a trial's value is NaN or infinite
    │   ├── UncapturableError       state that no checkpoint could bring back, by name
    │   └── WarmStartError          the initial weights do not exist, or do not fit
    ├── CheckpointError         a checkpoint cannot be written or read                     exit 1
    │   ├── CorruptCheckpointError  its files do not match its manifest
    │   ├── ForeignCheckpointError  it, or its directory, is another study's
    │   └── RestoreError            it does not fit the model: every mismatch is named
    ├── ExportError             a model cannot be written for other tools                  exit 1
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

import traceback
from pathlib import Path

_NOT_THE_USERS = ("/site-packages/", "/lib/python", str(Path(__file__).parent) + "/")


class SweeperError(Exception):
    """The root of the tree. ``exit_code`` is what the command line ends with.

    ``of_study`` is whether an error that ended one trial would end every other one, too: then
    the study's definition is to blame, whatever the trial's parameters. ``lasting`` is whether
    another attempt at the trial would raise it again, because it has the same seed and data.

    Examples:
        >>> try:
        ...     sweeper.load_study("nowhere.py")
        ... except sweeper.SweeperError as error:
        ...     print(error.exit_code)
        2
    """

    exit_code = 1
    of_study = False
    lasting = False

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints in a notebook: the user's own lines and the message."""
        frames = traceback.extract_tb(self.__traceback__)
        users = [f for f in frames if not any(path in f.filename for path in _NOT_THE_USERS)]
        return [*traceback.format_list(users), f"{type(self).__name__}: {self}"]


class UsageError(SweeperError):
    """The command or call names something that is not there, or cannot be understood.

    Examples:
        >>> study.results(storage="runs/sweeper.db")
        Traceback (most recent call last):
        sweeper.errors.UsageError: --storage: found 'runs/sweeper.db' ...
    """

    exit_code = 2


class StudyFileError(UsageError):
    """``FILE[:NAME]`` leads to no study: no such file, no Study in it, or two and no name.

    Examples:
        >>> sweeper.load_study("nowhere.py")
        Traceback (most recent call last):
        sweeper.errors.StudyFileError: ...
    """


class UnknownStudyError(UsageError):
    """The database holds no study, or no trial, of that name.

    Examples:
        >>> sweeper.load_study("letters", storage="sqlite:///runs/sweeper.db")
        Traceback (most recent call last):
        sweeper.errors.UnknownStudyError: there is no study 'letters' in sqlite:///runs/sweeper.db
    """


class DefinitionError(SweeperError):
    """The study's definition cannot be run as it is written.

    Examples:
        >>> sweeper.Every()
        Traceback (most recent call last):
        sweeper.errors.DefinitionError: Every() names no interval; give steps=, seconds= or epochs=
    """


class StudyImportError(DefinitionError):
    """The study's module raised while it was imported.

    Args:
        message: Which module it was, and what it raised.
        traceback: The user's own traceback, starting in their file.

    Examples:
        >>> try:
        ...     again = sweeper.load_study("digits.py")
        ... except sweeper.StudyImportError as error:
        ...     print(error.traceback)
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class DefinitionChangedError(DefinitionError):
    """The database holds a study of this name that was defined otherwise.

    Examples:
        >>> try:
        ...     results = study.run()
        ... except sweeper.DefinitionChangedError as error:
        ...     print(error)  # what changed, and the three ways to continue
    """


class ParameterError(DefinitionError):
    """A parameter was suggested again with another distribution, or has an impossible one.

    Examples:
        >>> def build_model(trial):
        ...     rate = trial.suggest_float("rate", 1e-4, 1e-2)
        ...     return trial.suggest_float("rate", 1e-3, 1e-1)  # one name has one range
    """

    of_study = True


class TrialError(SweeperError):
    """One trial failed. The error is stored with the trial, and the study continues.

    Examples:
        >>> [trial.error for trial in study.results().trials if trial.state == "failed"]
        []
    """


class FactoryError(TrialError):
    """A factory returned something that cannot be trained.

    Examples:
        >>> sweeper.fit("no model", ([1.0], [1.0]), epochs=1, checkpoints="checkpoints/none")
        Traceback (most recent call last):
        sweeper.errors.FactoryError: model is a str; expected a compiled keras.Model
    """

    of_study = True


class IndependenceError(TrialError):
    """A trial's model, data or callbacks hold something that was there before the trial.

    A run ends with it, and with 4, where the first trial of a new study would be refused; after
    that it fails its own trial only.

    Args:
        message: Names them all.
        sharings: Each of them, as `sweeper.guard.guard.Sharing`: ``first_path``
            is where the trial has it, ``second_path`` what else does.

    Examples:
        >>> import keras
        >>> shared = keras.layers.Dense(10)
        >>> def build_model(trial):
        ...     return keras.Sequential([keras.Input((64,)), shared])  # refused: two trials have it
        >>> sweeper.IndependenceError.exit_code
        4
    """

    exit_code = 4
    of_study = True
    lasting = True

    def __init__(self, message: str, sharings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.sharings = sharings


class ObjectiveError(TrialError):
    """The objective names a metric that the model does not report.

    Examples:
        >>> objective = sweeper.Objective("val_acuracy", "maximize")  # misspelt: the run ends
    """

    of_study = True


class DataError(TrialError):
    """The data have lengths that differ, or a form that cannot be read.

    Examples:
        >>> sweeper.Data(train=([1.0], [1.0]), batch_size=0)
        Traceback (most recent call last):
        sweeper.errors.DataError: Data(batch_size=0): it must be a whole number, at least 1
    """


class NonFiniteError(TrialError):
    """The objective is NaN or infinite at a trial's end.

    With ``nonfinite="fail"``: the objective or the loss is, after an epoch.

    Examples:
        >>> retries = sweeper.Retries(error=1)  # another attempt after it; none by default
    """

    lasting = True


class UncapturableError(TrialError):
    """Something that training changes could not be brought back by any checkpoint.

    Examples:
        >>> import threading
        >>> def build_callbacks(trial):
        ...     trial.track("lock", threading.Lock())  # refused, by its name
    """

    lasting = True


class WarmStartError(TrialError):
    """The starting point of a training is missing, is of another kind, or does not fit.

    Every mismatch is named, and nothing was assigned.

    Examples:
        >>> loose = sweeper.WarmStart("base.weights.h5", strict=False)  # takes what fits
    """


class CheckpointError(SweeperError):
    """A checkpoint cannot be written or read.

    Examples:
        >>> study.results().best.load_model(at=12345)
        Traceback (most recent call last):
        sweeper.errors.CheckpointError: ...
    """


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's files do not match its manifest.

    Args:
        message: Which file it is, and both digests or sizes.
        file: The damaged or missing file.
        tensor: Name of the damaged tensor in that file; None if another part is damaged, or it is unknown.

    Examples:
        >>> try:
        ...     model = study.results().best.load_model()
        ... except sweeper.CorruptCheckpointError as error:
        ...     print(error.file, error)  # the file, and both digests
    """

    def __init__(self, message: str, file: object = "", tensor: str | None = None) -> None:
        super().__init__(message)
        self.file = str(file)
        self.tensor = tensor


class ForeignCheckpointError(CheckpointError):
    """A checkpoint, or a directory of such, belongs to another study or training.

    Nothing in it was used, and nothing was written there.

    Examples:
        >>> results = study.run(runs_dir="runs")  # raises it where `runs` is another study's
    """


class RestoreError(CheckpointError):
    """A checkpoint does not fit what it is restored into; every mismatch is named.

    Examples:
        >>> try:
        ...     model = study.results().best.load_model()
        ... except sweeper.RestoreError as error:
        ...     print(error)  # every variable that does not fit
    """


class ExportError(SweeperError):
    """A model cannot be written for other tools.

    Nothing is left at the requested path.

    Examples:
        >>> exported = study.results().best.export("digits.keras", "keras")
    """


class StorageError(SweeperError):
    """The database refused or lost something.

    Examples:
        >>> study.status(storage="sqlite:///nowhere/sweeper.db")
        Traceback (most recent call last):
        sweeper.errors.DatabaseUnavailableError: ...
    """


class DatabaseUnavailableError(StorageError):
    """The database cannot be opened or reached.

    ``passing`` is True where that may be over soon: the server is away, or busy.

    Examples:
        >>> sweeper.DatabaseUnavailableError.passing  # True of one that may be over soon
        False
    """

    passing = False


class DatabaseVersionError(StorageError):
    """The database was written by another version of sweeper or of Optuna.

    Examples:
        >>> sweeper.DatabaseVersionError.exit_code  # `sweeper db upgrade` is the way on
        1
    """


class SupersededError(StorageError):
    """A write by an attempt that is no longer its trial's current attempt.

    Examples:
        >>> sweeper.SupersededError.exit_code  # who sees it stops its trial: another worker has it
        1
    """


class ExecutionError(SweeperError):
    """A worker, the fork server or a trial process failed outside the user's code.

    Examples:
        >>> sweeper.ExecutionError.exit_code  # run again: everything can be resumed
        1
    """


class ExactnessError(SweeperError):
    """An audit found that a resumed trial diverged from the uninterrupted one.

    It names the trial, the interval and what differs. Every trial is checkpointed; ``run
    --accept-inexact`` continues, and every command that reads the study reports it from then on.

    Examples:
        >>> try:
        ...     results = study.run()
        ... except sweeper.ExactnessError as error:
        ...     print(error)  # the trial, the interval, and what differs
    """

    exit_code = 4


class MixedStudyError(SweeperError):
    """A trial cannot be verified because it ran under another definition or code than its study's.

    Examples:
        >>> sweeper.MixedStudyError.exit_code  # `sweeper verify` ends with it
        4
    """

    exit_code = 4


class Interrupted(SweeperError):  # noqa: N818 - an outcome, not a fault
    """The run was stopped on request. Everything it did is kept and can be resumed.

    Examples:
        >>> try:
        ...     results = study.run()
        ... except sweeper.Interrupted:
        ...     results = study.resume()
    """

    exit_code = 130
