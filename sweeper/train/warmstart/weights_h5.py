"""Reader of weights in HDF5: ``.weights.h5``, the weights in a ``.keras`` file, and Keras 2's layout.

The model in a ``.keras`` file is not built, because its configuration may name code, and the study's
factory creates the model anyway.

Keras 3 stores values by the layer's position in its model (``layers/dense_1/vars/0``, or ``block/norms/…``
by attributes). The positions come from Keras's own walk over the model, run with a store that records and
writes nothing. Keras 2 stores values by the layers' names. Links out of the file are not followed, and no
code in it is run.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from keras.src.saving.saving_lib import H5IOStore, _save_state

from sweeper.checkpoint.tensors import Array
from sweeper.errors import WarmStartError
from sweeper.spec.warm_start import WarmStart
from sweeper.train.warmstart.source import (
    Candidate,
    Matched,
    Stored,
    by_names,
    is_random_state,
    renamed,
    variables_of,
    with_extra,
)

_COUNTED = re.compile(r"(.+?)(?:_\d+)?")
_OPTIMIZER = "optimizer/"


class HDF5Weights:
    """A file of Keras 3's or Keras 2's weights.

    Args:
        file: Path of the file, or the file.
        shown: Name of the file in errors.

    Attributes:
        kind: Format of the file, for reports.
        legacy: Whether it has the layout of Keras 2.

    Raises:
        WarmStartError: It is damaged, or has no weights of Keras.
    """

    kind: str

    def __init__(self, file: Path | BinaryIO, shown: str) -> None:
        self._shown = shown
        try:
            self._file = h5py.File(file, "r")
        except OSError as error:
            msg = (
                f"the warm start {shown} cannot be opened as HDF5 ({error}); it may have been "
                "truncated: write it again"
            )
            raise WarmStartError(msg) from error
        try:
            self._survey()
        except BaseException:
            self._file.close()
            raise

    def _survey(self) -> None:
        """Determine the layout of the file.

        Raises:
            WarmStartError: It has no weights of Keras.
        """
        self._root = self._file.get("model_weights", self._file)
        self._datasets = dict(_datasets(self._root, "", self._shown))
        self._named: dict[str, str] = {}
        self.legacy = "layer_names" in self._root.attrs
        if self.legacy:
            self.kind = "HDF5 weights in the layout of Keras 2"
            for key in self._datasets:
                if not key.startswith(("optimizer_weights/", "top_level_model_weights/")):
                    # The layer's group, then the weight's own name, ``dense/kernel``.
                    self._named[re.sub(r":\d+$", "", key.partition("/")[2])] = key
        elif any("/vars/" in f"/{key}" for key in self._datasets):
            self.kind = "Keras weights"
        else:
            some = ", ".join(list(self._datasets)[:4]) or "no values"
            msg = (
                f"the warm start {self._shown} is an HDF5 file with {some}; expected Keras "
                "weights, a file of model.save_weights('….weights.h5')"
            )
            raise WarmStartError(msg)

    def match(self, model: Any, options: WarmStart) -> Matched:
        variables = variables_of(model)
        if self.legacy:
            named = [(v, [v.path, v.path.partition("/")[2]]) for v in variables]
            return by_names(named, self._named, options.rename)
        recorded = _Recorder()
        _save_state(model, recorded, None, "", set())
        candidates = []
        for variable in variables:
            filed = recorded.keys.get(id(variable))
            if filed is None:
                reason = "not in it separately: its layer has its own save_own_variables"
                candidates.append(Candidate(variable, variable.path, None, (), reason))
                continue
            key = renamed(filed, options.rename)
            there = key if key in self._datasets else None
            reason = "" if there is None else self._other_layer(filed, key, recorded)
            candidates.append(
                Candidate(variable, variable.path, None if reason else there, (key,), reason)
            )
        taken = {name for each in candidates for name in each.looked_for}
        extra = {
            key: key
            for key in self._datasets
            if key not in taken and not key.startswith(_OPTIMIZER) and not is_random_state(key)
        }
        return Matched(tuple(candidates), extra)

    def _other_layer(self, filed: str, key: str, recorded: _Recorder) -> str:
        """Return the reason if the value belongs to another layer and both layers have the user's names."""
        group, there = filed.rpartition("/")[0], key.rpartition("/")[0]
        parts = group.split("/")
        # A path through an attribute has its name; a path through ``layers`` has a class and a count.
        kind = _COUNTED.fullmatch(parts[-2]) if "layers" in parts[-3:-2] else None
        ours = recorded.names.get(group)
        theirs = self._root[there].attrs.get("name")
        if kind is None or ours is None or theirs is None or filed != key or ours == theirs:
            return ""
        made_up = re.compile(rf"{re.escape(kind[1])}(_\d+)?")
        if made_up.fullmatch(ours) or made_up.fullmatch(theirs):
            return ""
        return (
            f"named differently: {key} in it belongs to the layer {theirs!r}, and this is {ours!r}"
        )

    def match_optimizer(self, optimizer: Any) -> Matched:
        keys = [key for key in self._datasets if key.startswith(f"{_OPTIMIZER}vars/")]
        if not keys:
            msg = f"the warm start {self._shown} has no readable optimizer state"
            raise WarmStartError(msg)
        candidates = []
        for index, variable in enumerate(optimizer.variables):
            key = f"{_OPTIMIZER}vars/{index}"
            there = key if key in self._datasets else None
            candidates.append(Candidate(variable, variable.path, there, (key,)))
        return with_extra(candidates, {key: key for key in keys}, {})

    def stored(self, key: str) -> Stored:
        dataset = self._datasets[key]
        return Stored(tuple(dataset.shape), _dtype(dataset).name)

    def read(self, key: str) -> Array:
        dataset = self._datasets[key]
        try:
            value: Array = np.asarray(dataset[()])
        except OSError as error:
            msg = f"{key} in the warm start {self._shown} cannot be read: {error}; write it again"
            raise WarmStartError(msg) from error
        return value.view(_dtype(dataset)) if value.dtype.kind == "V" else value

    def close(self) -> None:
        self._file.close()


class _Recorder(H5IOStore):  # type: ignore[misc] # Keras asks for its own class
    """Store that records the key under which Keras would write each variable, and writes nothing."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.names: dict[str, str] = {}
        self._group = ""
        self._seen: list[Any] = []

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: dict[str, str] | None = None) -> _Recorder:
        self._group = f"{path}/vars" if path else "vars"
        if metadata:
            self.names[self._group] = metadata["name"]
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        self._seen.append(value)
        self.keys.setdefault(id(value), f"{self._group}/{key}")


def _datasets(group: Any, path: str, shown: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each dataset below ``group``; refuse links out of the file."""
    for name in group:
        where = f"{path}/{name}" if path else name
        link = group.get(name, getlink=True)
        found = group[name] if isinstance(link, h5py.HardLink) else None
        outside = isinstance(found, h5py.Dataset) and (found.external or found.is_virtual)
        if found is None or outside:
            msg = (
                f"{where} in the warm start {shown} is a link to another file, which is not "
                "followed"
            )
            raise WarmStartError(msg)
        if isinstance(found, h5py.Group):
            yield from _datasets(found, where, shown)
        else:
            yield where, found


def _dtype(dataset: Any) -> np.dtype[Any]:
    """Return the value's dtype; Keras writes bfloat16 as bytes with an attribute."""
    named = dataset.attrs.get("dtype")
    if named is not None and dataset.dtype.kind == "V":
        import ml_dtypes

        named_dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(named)))
        return named_dtype
    dtype: np.dtype[Any] = dataset.dtype
    return dtype


_WEIGHTS = "model.weights.h5"
_LARGE = 1 << 32
_MOST_EXPANDED = 1000


class KerasFile(HDF5Weights):
    """The weights in a ``.keras`` file.

    Raises:
        WarmStartError: It is not a complete ``.keras`` file, or its weights have another form.
    """

    def __init__(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                if _WEIGHTS not in names:
                    some = ", ".join(names[:6]) or "nothing"
                    msg = (
                        f"the warm start {path} is a zip file with {some}; expected a .keras file "
                        f"with {_WEIGHTS} in it, as model.save('….keras') writes it"
                    )
                    raise WarmStartError(msg)
                info = archive.getinfo(_WEIGHTS)
                if info.file_size > max(_LARGE, _MOST_EXPANDED * info.compress_size):
                    msg = (
                        f"{_WEIGHTS} in {path} claims an impossible size of {info.file_size} bytes"
                    )
                    raise WarmStartError(msg)
                content = archive.read(_WEIGHTS)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            msg = (
                f"the warm start {path} is not a complete .keras file ({error}); it may have been "
                "truncated: write it again"
            )
            raise WarmStartError(msg) from error
        super().__init__(io.BytesIO(content), str(path))
        self.kind = "Keras model"
