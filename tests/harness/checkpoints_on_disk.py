"""A checkpoint with a value in each component of a training's state, and copies with one value changed."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.store import CheckpointStore

STATE = {
    "position": {
        "step": 8,
        "epoch": 1,
        "step_in_epoch": 0,
        "stopped": False,
        "logs": {"loss": 0.5, "seconds": 1.5},
    },
    "parts": {"loss_scale": 1},
    "data": {"train": {"kind": "ArraySource", "state": [0]}, "validation": None},
    "reopening": {"train": {"x": 0}},
    "model": ["dense/kernel", "dense/bias"],
    "optimizer": ["adam/iteration", "adam/learning_rate", "loss_scale/dynamic_scale"],
    "optimizers": ["sgd/momentum"],
    "metrics": ["mean/total"],
    "reachable": ["own/weight"],
    "user_state": {
        "changed": {
            "callback Count": {
                "set": {"count": 3, "made": {"!": "list", "v": [1, 2]}},
                "gone": [],
            },
            "callback Count.inner": {"items": [["took", 0.5], ["epochs", 2]]},
            "module study": {"set": {"seen": 4}, "gone": []},
            "os.environ": {"items": [["MODE", "warm"]]},
        },
        "left_out": [["callback Keeps: attribute 'left'", "7"]],
    },
    "global_seed_generator": None,
    "python_random": {"version": 3, "gauss": None},
    "numpy_random": {"kind": "MT19937"},
    "history": {
        "epoch": [0],
        "logs": {"!": "dict", "v": [["loss", {"!": "list", "v": [0.5]}]]},
        "epochs": [[0, {"loss": 0.5, "val_accuracy": 0.25, "seconds": 1.5}]],
    },
    "callbacks": [
        {"name": "callback Count"},
        {"name": "callback Keeps", "state": {"!": "dict", "v": [["best", 0.5]]}},
        {"name": "callback CSVLogger", "file_size": 120},
        {"name": "tracked object 'counter'", "state": {"!": "list", "v": [1]}},
    ],
    "eager_operations": {"counter": 5},
}
TENSORS = {
    "model/00000": np.arange(6, dtype=np.float32),
    "model/00001": np.zeros(2, np.float32),
    "optimizer/00000": np.array(8),
    "optimizer/00001": np.array(0.01, np.float32),
    "optimizer/00002": np.array(2.0, np.float32),
    "optimizers/00000": np.ones(2, np.float32),
    "metrics/00000": np.ones(1, np.float32),
    "reachable/00000": np.ones(3, np.float32),
    "global_seed_generator/state": np.array([1, 2], np.uint32),
    "python_random/0": np.arange(4, dtype=np.uint32),
    "numpy_random/words": np.arange(4, dtype=np.uint32),
    "tensorflow_random/global": np.arange(3, dtype=np.int64),
    "user_state/callback Count.seconds": np.array([0.5, 0.25, 0.0]),
    "callbacks/1/state/weights": np.ones(3),
    "callbacks/3/state/moments": np.ones(2),
    "data/train/order": np.arange(5),
    "data/train/iterator": np.zeros(8, np.uint8),
}


@dataclass(frozen=True)
class Planted:
    """A value that is changed."""

    where: Sequence[Any]

    def write(self, directory, value, *, also=None):
        """Commit a checkpoint with ``value`` there, and ``also`` another one at another path."""
        state = copy.deepcopy(STATE)
        tensors = {n: tensor.copy() for n, tensor in TENSORS.items()}
        for where, planted in ((self.where, value), *(() if also is None else (also,))):
            inside = tensors if "/" in where[0] else state
            for part in where[:-1]:
                inside = inside[part]
            inside[where[-1]] = planted
        return write(directory, state, tensors)


def write(directory, state=None, tensors=None):
    """Commit a checkpoint with these, or the usual ones."""
    place = directory / "attempt-01" / "checkpoints"
    return commit(place, tensors or TENSORS, state or STATE, seconds=float(len(directory.name)))


def commit(place, tensors, state, *, step=8, epoch=1, seconds=0.0, metrics=None):
    """Commit a checkpoint in a store's directory; return its path."""
    digested = tuple(name for name in tensors if name.startswith(("model", "optimizer")))
    taken = Snapshot(step, epoch, tensors, state, metrics=metrics or {}, digest_names=digested)
    return Path(str(CheckpointStore(place).commit(taken, trained_seconds=seconds).path))
