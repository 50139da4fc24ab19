"""Sweeper: experiment sweeps for Keras and TensorFlow whose results can be trusted.

A `Study` compares hyperparameters. Every trial trains its own model in its own process;
an interrupted trial continues exactly where it stopped; everything is in a database that Optuna's tools
read as well. Importing this package imports neither TensorFlow nor Optuna: each name, but for
the errors, is looked up when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
    ExportError,
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
    WarmStartError,
)
from sweeper.support.installation import VERSION

if TYPE_CHECKING:
    from sweeper.api.fit import fit
    from sweeper.api.stored_study import StoredStudy
    from sweeper.api.study import Study, load_study
    from sweeper.declarations.budgets import Halving, Hyperband
    from sweeper.declarations.checkpointing import Every, Keep
    from sweeper.declarations.retries import Retries
    from sweeper.declarations.searching import Objective
    from sweeper.declarations.warm_start import WarmStart
    from sweeper.definition.trial import Trial
    from sweeper.models.exported import Exported
    from sweeper.records.configurations import ConfigurationRecord
    from sweeper.records.evaluations import EvaluationRecord
    from sweeper.records.lengths import LengthRecord
    from sweeper.records.results import (
        AttemptRecord,
        BestTrial,
        CheckpointRecord,
        EpochRecord,
        ParetoTrial,
        StudyResults,
        StudyStatus,
        TrialRecord,
        TrialStatus,
    )
    from sweeper.train.data import Data
    from sweeper.train.step import TrainingStep
    from sweeper.train.step_callbacks import AtStep, EverySteps

_MODULES = {
    "sweeper.declarations.budgets": ("Halving", "Hyperband"),
    "sweeper.declarations.checkpointing": ("Every", "Keep"),
    "sweeper.models.exported": ("Exported",),
    "sweeper.api.fit": ("fit",),
    "sweeper.records.configurations": ("ConfigurationRecord",),
    "sweeper.records.evaluations": ("EvaluationRecord",),
    "sweeper.records.lengths": ("LengthRecord",),
    "sweeper.declarations.retries": ("Retries",),
    "sweeper.records.results": (
        "AttemptRecord",
        "BestTrial",
        "CheckpointRecord",
        "EpochRecord",
        "ParetoTrial",
        "StudyResults",
        "StudyStatus",
        "TrialRecord",
        "TrialStatus",
    ),
    "sweeper.declarations.searching": ("Objective",),
    "sweeper.api.stored_study": ("StoredStudy",),
    "sweeper.api.study": ("Study", "load_study"),
    "sweeper.train.data": ("Data",),
    "sweeper.train.step": ("TrainingStep",),
    "sweeper.train.step_callbacks": ("AtStep", "EverySteps"),
    "sweeper.declarations.warm_start": ("WarmStart",),
    "sweeper.definition.trial": ("Trial",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AtStep",
    "AttemptRecord",
    "BestTrial",
    "CheckpointError",
    "CheckpointRecord",
    "ConfigurationRecord",
    "CorruptCheckpointError",
    "Data",
    "DataError",
    "DatabaseUnavailableError",
    "DatabaseVersionError",
    "DefinitionChangedError",
    "DefinitionError",
    "EpochRecord",
    "EvaluationRecord",
    "Every",
    "EverySteps",
    "ExactnessError",
    "ExecutionError",
    "ExportError",
    "Exported",
    "FactoryError",
    "ForeignCheckpointError",
    "Halving",
    "Hyperband",
    "IndependenceError",
    "Interrupted",
    "Keep",
    "LengthRecord",
    "MixedStudyError",
    "NonFiniteError",
    "Objective",
    "ObjectiveError",
    "ParameterError",
    "ParetoTrial",
    "RestoreError",
    "Retries",
    "StorageError",
    "StoredStudy",
    "Study",
    "StudyFileError",
    "StudyImportError",
    "StudyResults",
    "StudyStatus",
    "SupersededError",
    "SweeperError",
    "TrainingStep",
    "Trial",
    "TrialError",
    "TrialRecord",
    "TrialStatus",
    "UncapturableError",
    "UnknownStudyError",
    "UsageError",
    "WarmStart",
    "WarmStartError",
    "fit",
    "load_study",
]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'sweeper' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
