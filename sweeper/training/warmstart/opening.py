"""Which class reads which format; each is imported only for a file of its own."""

from __future__ import annotations

from sweeper.errors import CheckpointError
from sweeper.training.warmstart.locating import LocatedFile
from sweeper.training.warmstart.source import WarmStartSource


def open_source(located: LocatedFile) -> WarmStartSource:
    """The file, opened.

    Raises:
        WarmStartError: It is damaged, or not what it seemed to be.
        CheckpointError: It cannot be read.
    """
    path = located.path
    try:
        match located.format:
            case "hdf5":
                from sweeper.training.warmstart.weights_h5 import HDF5Weights

                return HDF5Weights(path, str(path))
            case "keras":
                from sweeper.training.warmstart.keras_file import KerasFile

                return KerasFile(path)
            case "safetensors":
                from sweeper.training.warmstart.safetensors_file import SafetensorsFile

                return SafetensorsFile(path)
            case "sweeper":
                from sweeper.training.warmstart.sweeper_checkpoint import SweeperCheckpoint

                return SweeperCheckpoint(path)
            case "tf-checkpoint":
                from sweeper.training.warmstart.tf_checkpoint import TensorFlowCheckpoint

                return TensorFlowCheckpoint(path)
    except OSError as error:
        msg = f"the warm start {path} cannot be read: {error}; check the disk, then resume"
        raise CheckpointError(msg) from error
