"""Files with a list of named values: sweeper's checkpoints and ``.safetensors``.

Keras names a layer without a name by its class and a count (``dense_7``). The process counts, so the
number depends on models that were created before. Names are therefore compared unchanged, and if more
fit, with counts that start again in each model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.tensors import Array, NamedTensors
from sweeper.errors import CorruptCheckpointError, WarmStartError
from sweeper.spec.warm_start import WarmStart
from sweeper.train.warmstart.source import (
    Candidate,
    Matched,
    Stored,
    by_names,
    variables_of,
    with_extra,
)

_COUNTED = re.compile(r"([a-z][a-z0-9_]*?)(?:_(\d+))?")


def match_flat(model: Any, keys: Mapping[str, str], rename: Mapping[str, str]) -> Matched:
    """Match the model's variables with ``keys``, which has the file's keys by name."""
    variables = variables_of(model)
    paths = unique([v.path for v in variables])
    exact = _matched(variables, paths, keys, rename)
    if all(candidate.key for candidate in exact.candidates):
        return exact
    anew = dict(zip(recounted(list(keys)), keys.values(), strict=True))
    recounted_paths = recounted(paths)
    counted = _matched(variables, recounted_paths, anew, rename)
    if _fitting(counted) > _fitting(exact):
        shown = {key: name for name, key in keys.items()}
        extra = {key: shown[key] for key in counted.extra}
        return Matched(counted.candidates, extra, shown)
    return exact


def unique(names: Sequence[str], mark: str = "#") -> list[str]:
    """Return the names; a repeated name gets a suffix ``#2``, ``#3``, …, with ``mark`` as the sign."""
    counts: dict[str, int] = {}
    found = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        found.append(name if counts[name] == 1 else f"{name}{mark}{counts[name]}")
    return found


def recounted(paths: Sequence[str]) -> list[str]:
    """Return the paths with the count in each part replaced by one that starts again."""
    known: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    found = []
    for path in paths:
        before, parts = "", []
        for part in path.split("/")[:-1]:
            kind = _COUNTED.fullmatch(part)
            position = (before, part)
            if position not in known:
                base = part if kind is None else kind[1]
                count = counts.get((before, base), 0)
                counts[before, base] = count + 1
                known[position] = base if count == 0 else f"{base}_{count}"
            parts.append(known[position])
            before = f"{before}/{part}"
        found.append("/".join([*parts, path.rpartition("/")[2]]))
    return unique(found)


def _matched(
    variables: Sequence[Any],
    paths: Sequence[str],
    keys: Mapping[str, str],
    rename: Mapping[str, str],
) -> Matched:
    named = [
        (v, [path, path.partition("/")[2]] if "/" in path else [path])
        for v, path in zip(variables, paths, strict=True)
    ]
    return by_names(named, keys, rename)


def _fitting(matched: Matched) -> int:
    return sum(candidate.key is not None for candidate in matched.candidates)


class SafetensorsFile:
    """A ``.safetensors`` file.

    Raises:
        WarmStartError: It is damaged.
    """

    kind = "safetensors file"

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._tensors = NamedTensors(path)
        except ValueError as error:
            msg = (
                f"the warm start {path} is not a complete safetensors file: {error}; write it again"
            )
            raise WarmStartError(msg) from error

    def match(self, model: Any, options: WarmStart) -> Matched:
        names = [name for name in self._tensors.entries if not name.startswith("optimizer/")]
        return match_flat(model, {name: name for name in names}, options.rename)

    def match_optimizer(self, optimizer: Any) -> Matched:
        del optimizer
        msg = f"the warm start {self._path} is a safetensors file, which has no optimizer state"
        raise WarmStartError(msg)

    def stored(self, key: str) -> Stored:
        entry = self._tensors.entries[key]
        return Stored(entry.shape, entry.dtype)

    def read(self, key: str) -> Array:
        return self._tensors.read(key)

    def close(self) -> None:
        self._tensors.entries.clear()


class SweeperCheckpoint:
    """A checkpoint of sweeper, read and verified completely.

    Raises:
        WarmStartError: It is damaged.
        CheckpointError: It cannot be read, or has a later format.
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
            msg = f"the warm start {self._path} has no optimizer state"
            raise WarmStartError(msg)
        keys = [f"optimizer/{index:05d}" for index in range(len(names))]
        candidates = [
            Candidate(v, v.path, keys[i] if i < len(keys) else None, (f"optimizer variable {i}",))
            for i, v in enumerate(optimizer.variables)
        ]
        shown = dict(zip(keys, names, strict=True))
        return with_extra(candidates, shown, shown)

    def stored(self, key: str) -> Stored:
        array = self._loaded.tensors[key]
        return Stored(array.shape, array.dtype.name)

    def read(self, key: str) -> Array:
        return self._loaded.tensors[key]

    def close(self) -> None:
        self._loaded.tensors.clear()
