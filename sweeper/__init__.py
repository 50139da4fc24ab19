"""Sweeper: experiment sweeps for Keras and TensorFlow whose results can be trusted.

A `Study` compares hyperparameters. Every trial trains a model of its own in a process of its own;
an interrupted trial goes on exactly where it was; everything is in a database that Optuna's tools
read as well. Importing this package imports neither TensorFlow nor Optuna: each name is looked up
when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sweeper.installation import VERSION

if TYPE_CHECKING:
    from sweeper.checkpoints.policy import Every, Keep
    from sweeper.errors import (
        CheckpointError,
        CorruptCheckpointError,
        DatabaseUnavailableError,
        DatabaseVersionError,
        DataError,
        DefinitionChangedError,
        DefinitionError,
        ExactnessError,
        ExecutionError,
        FactoryError,
        ForeignCheckpointError,
        IndependenceError,
        Interrupted,
        MixedStudyError,
        NonFiniteError,
        ObjectiveError,
        ParameterError,
        RestoreError,
        StorageError,
        StudyFileError,
        StudyImportError,
        SupersededError,
        SweeperError,
        TrialError,
        UncapturableError,
        UnknownStudyError,
        UsageError,
    )
    from sweeper.fitting import fit
    from sweeper.policy import Retries
    from sweeper.results import (
        AttemptRecord,
        BestTrial,
        CheckpointRecord,
        EpochRecord,
        ParetoTrial,
        StudyResults,
        StudyStatus,
        TrialRecord,
    )
    from sweeper.searching import Objective
    from sweeper.study import Study, load_study
    from sweeper.training.data import Data
    from sweeper.trial import Trial

_PLACES = {
    "sweeper.checkpoints.policy": ("Every", "Keep"),
    "sweeper.errors": (
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
    ),
    "sweeper.fitting": ("fit",),
    "sweeper.policy": ("Retries",),
    "sweeper.results": (
        "AttemptRecord",
        "BestTrial",
        "CheckpointRecord",
        "EpochRecord",
        "ParetoTrial",
        "StudyResults",
        "StudyStatus",
        "TrialRecord",
    ),
    "sweeper.searching": ("Objective",),
    "sweeper.study": ("Study", "load_study"),
    "sweeper.training.data": ("Data",),
    "sweeper.trial": ("Trial",),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "AttemptRecord",
    "BestTrial",
    "CheckpointError",
    "CheckpointRecord",
    "CorruptCheckpointError",
    "Data",
    "DataError",
    "DatabaseUnavailableError",
    "DatabaseVersionError",
    "DefinitionChangedError",
    "DefinitionError",
    "EpochRecord",
    "Every",
    "ExactnessError",
    "ExecutionError",
    "FactoryError",
    "ForeignCheckpointError",
    "IndependenceError",
    "Interrupted",
    "Keep",
    "MixedStudyError",
    "NonFiniteError",
    "Objective",
    "ObjectiveError",
    "ParameterError",
    "ParetoTrial",
    "RestoreError",
    "Retries",
    "StorageError",
    "Study",
    "StudyFileError",
    "StudyImportError",
    "StudyResults",
    "StudyStatus",
    "SupersededError",
    "SweeperError",
    "Trial",
    "TrialError",
    "TrialRecord",
    "UncapturableError",
    "UnknownStudyError",
    "UsageError",
    "fit",
    "load_study",
]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        msg = f"module 'sweeper' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(place), name)


def __dir__() -> list[str]:
    return sorted(__all__)
