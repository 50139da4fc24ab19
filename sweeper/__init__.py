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
from sweeper.support.tensorflow_start import quiet_first_import

if TYPE_CHECKING:
    from sweeper.checkpoints.policy import Every, Keep
    from sweeper.declared.budgets import Halving, Hyperband
    from sweeper.declared.policy import Retries
    from sweeper.declared.populations import Population, Scale
    from sweeper.declared.searching import Objective
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
    from sweeper.export.report import Exported
    from sweeper.fitting import fit
    from sweeper.records.lengths import LengthRecord
    from sweeper.results import (
        AttemptRecord,
        BestTrial,
        CheckpointRecord,
        EpochRecord,
        EvaluationRecord,
        ParetoTrial,
        StudyResults,
        StudyStatus,
        TrialRecord,
        TrialStatus,
    )
    from sweeper.stored.study import StoredStudy
    from sweeper.study import Study, load_study
    from sweeper.training.data import Data
    from sweeper.training.step import TrainingStep
    from sweeper.training.step_callbacks import AtStep, EverySteps
    from sweeper.training.warmstart.options import WarmStart
    from sweeper.trial import Trial

_MODULES = {
    "sweeper.declared.budgets": ("Halving", "Hyperband"),
    "sweeper.declared.populations": ("Population", "Scale"),
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
        "ExportError",
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
        "WarmStartError",
    ),
    "sweeper.export.report": ("Exported",),
    "sweeper.fitting": ("fit",),
    "sweeper.records.lengths": ("LengthRecord",),
    "sweeper.declared.policy": ("Retries",),
    "sweeper.results": (
        "AttemptRecord",
        "BestTrial",
        "CheckpointRecord",
        "EpochRecord",
        "EvaluationRecord",
        "ParetoTrial",
        "StudyResults",
        "StudyStatus",
        "TrialRecord",
        "TrialStatus",
    ),
    "sweeper.declared.searching": ("Objective",),
    "sweeper.stored.study": ("StoredStudy",),
    "sweeper.study": ("Study", "load_study"),
    "sweeper.training.data": ("Data",),
    "sweeper.training.step": ("TrainingStep",),
    "sweeper.training.step_callbacks": ("AtStep", "EverySteps"),
    "sweeper.training.warmstart.options": ("WarmStart",),
    "sweeper.trial": ("Trial",),
}
_NO_MULTI_WORKER = (
    "sweeper.MultiWorker was removed: a trial trains in one process; use "
    "Study(strategy=lambda trial: tf.distribute.MirroredStrategy()), which trains on all GPUs that the trial "
    "sees, and run other trials on other hosts (`sweeper worker`)"
)
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AtStep",
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
    "Population",
    "RestoreError",
    "Retries",
    "Scale",
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

quiet_first_import()


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if name == "MultiWorker":
        from sweeper.errors import DefinitionError

        raise DefinitionError(_NO_MULTI_WORKER)
    if module is None:
        msg = f"module 'sweeper' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
