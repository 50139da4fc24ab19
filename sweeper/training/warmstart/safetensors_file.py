"""A ``.safetensors`` file whose tensors are called as the model's variables are (`Variable.path`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeper.checkpoints.tensors import Array, NamedTensors
from sweeper.errors import WarmStartError
from sweeper.training.warmstart.flat_names import match_flat
from sweeper.training.warmstart.options import WarmStart
from sweeper.training.warmstart.source import Matched, Stored


class SafetensorsFile:
    """A file of tensors by name.

    Raises:
        WarmStartError: It is damaged.
    """

    kind = "safetensors file"

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._tensors = NamedTensors(path)
        except ValueError as error:
            msg = f"the warm start {path} is no whole safetensors file: {error}; write it again"
            raise WarmStartError(msg) from error

    def match(self, model: Any, options: WarmStart) -> Matched:
        names = [name for name in self._tensors.entries if not name.startswith("optimizer/")]
        return match_flat(model, {name: name for name in names}, options.rename)

    def match_optimizer(self, optimizer: Any) -> Matched:
        del optimizer
        msg = f"the warm start {self._path} is a safetensors file, which holds no optimizer's state"
        raise WarmStartError(msg)

    def stored(self, key: str) -> Stored:
        entry = self._tensors.entries[key]
        return Stored(entry.shape, entry.dtype)

    def read(self, key: str) -> Array:
        return self._tensors.read(key)

    def close(self) -> None:
        self._tensors.entries.clear()
