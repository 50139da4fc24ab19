"""A checkpoint of another trial's, or of `sweeper.fit`'s: the model's and the optimizer's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeper.checkpoints.reading import load_checkpoint
from sweeper.checkpoints.tensors import Array
from sweeper.errors import CorruptCheckpointError, WarmStartError
from sweeper.training.warmstart.flat_names import match_flat, unique
from sweeper.training.warmstart.options import WarmStart
from sweeper.training.warmstart.source import Candidate, Matched, Stored


class SweeperCheckpoint:
    """A checkpoint, read and verified whole.

    Raises:
        WarmStartError: It is damaged.
        CheckpointError: It cannot be read, or is of a later format.
    """

    kind = "checkpoint of sweeper's"

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._loaded = load_checkpoint(path)
        except CorruptCheckpointError as error:
            msg = f"the warm start {path} is damaged: {error}; give another checkpoint of its trial"
            raise WarmStartError(msg) from error

    def match(self, model: Any, options: WarmStart) -> Matched:
        names = unique(self._loaded.state["model"])
        keys = {name: f"model/{index:05d}" for index, name in enumerate(names)}
        return match_flat(model, keys, options.rename)

    def match_optimizer(self, optimizer: Any) -> Matched:
        names: list[str] = self._loaded.state["optimizer"]
        if not names:
            msg = f"the warm start {self._path} holds no optimizer's state"
            raise WarmStartError(msg)
        keys = [f"optimizer/{index:05d}" for index in range(len(names))]
        candidates = [
            Candidate(v, v.path, keys[i] if i < len(keys) else None, (f"optimizer variable {i}",))
            for i, v in enumerate(optimizer.variables)
        ]
        rest = dict(zip(keys, names, strict=True))
        extra = {key: name for key, name in rest.items() if key not in {c.key for c in candidates}}
        return Matched(tuple(candidates), extra, rest)

    def stored(self, key: str) -> Stored:
        array = self._loaded.tensors[key]
        return Stored(array.shape, array.dtype.name)

    def read(self, key: str) -> Array:
        return self._loaded.tensors[key]

    def close(self) -> None:
        self._loaded.tensors.clear()
