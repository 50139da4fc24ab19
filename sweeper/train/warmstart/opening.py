"""Readers of the formats; each is imported only for a file of its format."""

from __future__ import annotations

from sweeper.errors import CheckpointError
from sweeper.train.warmstart.source import LocatedFile, WarmStartSource


def open_source(located: LocatedFile) -> WarmStartSource:
    """Return the file, opened.

    Raises:
        WarmStartError: It is damaged, or not what it seemed to be.
        CheckpointError: It cannot be read.
    """
    path = located.path
    try:
        match located.format:
            case "hdf5":
                from sweeper.train.warmstart.weights_h5 import HDF5Weights

                return HDF5Weights(path, str(path))
            case "keras":
                from sweeper.train.warmstart.weights_h5 import KerasFile

                return KerasFile(path)
            case "safetensors":
                from sweeper.train.warmstart.flat_files import SafetensorsFile

                return SafetensorsFile(path)
            case "sweeper":
                from sweeper.train.warmstart.flat_files import SweeperCheckpoint

                return SweeperCheckpoint(path)
            case "tf-checkpoint":
                from sweeper.train.warmstart.tf_checkpoint import TensorFlowCheckpoint

                return TensorFlowCheckpoint(path)
    except OSError as error:
        msg = f"the warm start {path} cannot be read: {error}; check the disk, then resume"
        raise CheckpointError(msg) from error
