"""Objects of libraries whose state is not in attributes: pandas frames, buffers, progress bars and logs.

A frame and a buffer are read, and restored in place. Other objects written in C are compared by their
pickles, which are never loaded, so a change is refused by name. Progress bars and logs only write, and
no result depends on them.
"""

from __future__ import annotations

import array
import io
import logging
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.inspection.sorts import class_name, module_of
from sweeper.train.codec import (
    TAG,
    Json,
    NotPlainError,
    Tensors,
    UnplaceableError,
    decode,
    digest_of,
    encode,
    put_array,
    take_array,
)
from sweeper.train.userstate.values import SMALL, Value

_MOST_PICKLED = 4 << 20
"""Size of a pickle in bytes above which an object is not compared."""

_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
_HARMLESS: tuple[type, ...] = (object, threading.local)
"""Classes written in C whose objects have no other state than attributes."""


def hides_state(cls: type) -> bool:
    """Return whether objects of ``cls`` may have state besides attributes, because a base is written in C."""
    return any(
        not base.__flags__ & _HEAP
        or base.__flags__ & _IMMUTABLE
        or "__reduce_cython__" in vars(base)
        for base in cls.__mro__
        if not issubclass(base, BaseException) and base not in _HARMLESS
    )


class Opaque(Value):
    """An object whose changes are found by its pickle."""

    __slots__ = ()

    def token(self) -> Any:
        return _pickled(self.thing)

    def begin(self) -> None:
        super().begin()
        if self.began != self.token():
            # Its pickle differs each time, so it cannot be compared.
            self.began = None

    def changed(self) -> bool:
        return self.began is not None and super().changed()

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors
        what = f"a {class_name(type(self.thing))}, whose content no API can read"
        raise NotPlainError(key, self.thing, what)


class _Bounded(io.RawIOBase):
    """Writer with a maximum number of bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.left = _MOST_PICKLED

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = bytes(data)
        self.left -= len(written)
        if self.left < 0:
            raise pickle.PicklingError("too large")
        self.parts.append(written)
        return len(written)


def _pickled(thing: object) -> bytes | None:
    taken = _Bounded()
    try:
        pickle.Pickler(taken, 5).dump(thing)
    except Exception:
        return None
    return b"".join(taken.parts)


def is_buffer(thing: object) -> bool:
    """Return whether ``thing`` is writable memory, such as a `bytearray` or `array.array`."""
    try:
        with memoryview(thing) as view:  # type: ignore[arg-type]
            return not view.readonly and view.c_contiguous
    except TypeError:
        return False


class Buffer(Value):
    """Writable memory: a `bytearray`, an `array.array`, a ctypes array."""

    __slots__ = ("copy",)

    def token(self) -> Any:
        return digest_of(np.frombuffer(self._bytes(), np.uint8))

    def begin(self) -> None:
        super().begin()
        self.copy = self._bytes() if memoryview(self.thing).nbytes <= SMALL else None

    def reset(self) -> None:
        if self.copy is not None:
            self._write(self.copy)

    def capture(self, tensors: Tensors, key: str) -> Json:
        return put_array(np.frombuffer(self._bytes(), np.uint8), tensors, key)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._write(take_array(saved, tensors).tobytes())

    def _bytes(self) -> bytes:
        with memoryview(self.thing) as view:
            return view.tobytes()

    def _write(self, data: bytes) -> None:
        thing = self.thing
        if isinstance(thing, bytearray):
            thing[:] = data
        elif isinstance(thing, array.array):
            thing[:] = array.array(thing.typecode, data)
        else:
            with memoryview(thing) as view:
                if view.nbytes != len(data):
                    msg = f"it had {len(data):,} bytes, and has {view.nbytes:,} now"
                    raise UnplaceableError(msg)
                view.cast("B")[:] = data


def is_pandas(thing: object) -> bool:
    """Return whether ``thing`` is a pandas frame or series."""
    cls = type(thing)
    return module_of(cls).partition(".")[0] == "pandas" and cls.__name__ in _PANDAS


_PANDAS = ("DataFrame", "Series")


def arrays_in(thing: Any) -> list[np.ndarray[Any, Any]]:
    """Return the NumPy arrays with the values of a frame or a series, each once."""
    found = {}
    for column in _columns(thing):
        if isinstance(column.dtype, np.dtype):
            values = column.to_numpy()
            while isinstance(values.base, np.ndarray):
                values = values.base
            found[id(values)] = values
    return list(found.values())


def _columns(thing: Any) -> list[Any]:
    if type(thing).__name__ == "Series":
        return [thing]
    return [thing.iloc[:, at] for at in range(thing.shape[1])]


class PandasObject(Value):
    """Layout and labels of a pandas frame or series; its arrays are separate holders."""

    __slots__ = ("copy", "kept")

    def token(self) -> Any:
        thing = self.thing
        labels = (id(thing.index), id(getattr(thing, "columns", None)))
        return labels, repr(getattr(thing, "name", None)), tuple(map(_layout, _columns(thing)))

    def begin(self) -> None:
        super().begin()
        thing, arrays = self.thing, arrays_in(self.thing)
        # References, so that the ids in the token are not reused.
        self.kept = [*arrays, thing.index, getattr(thing, "columns", None)]
        size = sum(array.nbytes for array in arrays)
        self.copy = thing.copy(deep=True) if size <= SMALL else None

    def reset(self) -> None:
        if self.copy is not None:
            _become(self.thing, self.copy.copy(deep=True))

    def capture(self, tensors: Tensors, key: str) -> Json:
        return put_pandas(self.thing, tensors, key)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        _become(self.thing, take_pandas(saved, tensors))


def _layout(column: Any) -> Any:
    """Return the address of a column's NumPy array, or the values of another column."""
    import pandas as pd

    if isinstance(column.dtype, np.dtype):
        inside = column.to_numpy().__array_interface__
        return inside["typestr"], inside["data"][0], inside["shape"], inside["strides"]
    return str(column.dtype), digest_of(pd.util.hash_array(column.array))


def _become(thing: Any, other: Any) -> None:
    """Call the constructor of ``thing`` again, with the content of ``other``."""
    noted, unique = thing.attrs, thing.flags.allows_duplicate_labels
    type(thing).__init__(thing, other)
    thing.attrs = noted
    thing.flags.allows_duplicate_labels = unique


def put_pandas(thing: Any, tensors: Tensors, key: str) -> Json:
    """Encode a frame or a series.

    Raises:
        NotPlainError: It has values or labels that are neither text nor of a NumPy dtype.
    """
    if type(thing).__name__ == "Series":
        values = [_put_values(thing, tensors, f"{key}/values")]
        name = encode(thing.name, f"{key}/name", tensors)
        return {
            "index": _put_index(thing.index, tensors, f"{key}/index"),
            "series": values,
            "name": name,
        }
    columns = [
        _put_values(thing.iloc[:, at], tensors, f"{key}/{at}") for at in range(thing.shape[1])
    ]
    return {
        "index": _put_index(thing.index, tensors, f"{key}/index"),
        "columns": _put_index(thing.columns, tensors, f"{key}/columns"),
        "values": columns,
    }


def take_pandas(saved: Json, tensors: Mapping[str, Any]) -> Any:
    """Return the inverse of `put_pandas`."""
    import pandas as pd

    index = _take_index(saved["index"], tensors)
    if "series" in saved:
        (values,) = saved["series"]
        return pd.Series(_take_values(values, tensors), index, name=decode(saved["name"], tensors))
    columns = [pd.Series(_take_values(each, tensors), index) for each in saved["values"]]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=index)
    frame.columns = _take_index(saved["columns"], tensors)
    return frame


def _put_values(column: Any, tensors: Tensors, key: str) -> Json:
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return {"array": put_array(column.to_numpy(), tensors, key)}
    if str(dtype) in ("object", "str", "string"):
        return {"dtype": str(dtype), "items": encode(column.tolist(), key, tensors)}
    what = f"a pandas object with values of type {dtype}"
    raise NotPlainError(key, column, what)


def _take_values(saved: Json, tensors: Mapping[str, Any]) -> Any:
    import pandas as pd

    if "array" in saved:
        return take_array(saved["array"], tensors)
    return pd.Series(decode(saved["items"], tensors), dtype=saved["dtype"]).array


def _put_index(index: Any, tensors: Tensors, key: str) -> Json:
    name = encode(index.name, f"{key}/name", tensors)
    kind = type(index).__name__
    if kind == "RangeIndex":
        return {"range": [index.start, index.stop, index.step], "name": name}
    if kind != "Index":
        what = f"a pandas object with a {kind}"
        raise NotPlainError(key, index, what)
    return {"values": _put_values(index, tensors, key), "name": name}


def _take_index(saved: Json, tensors: Mapping[str, Any]) -> Any:
    import pandas as pd

    name = decode(saved["name"], tensors)
    if "range" in saved:
        return pd.RangeIndex(*saved["range"], name=name)
    return pd.Index(_take_values(saved["values"], tensors), name=name)


_OUTPUT: tuple[type, ...] = (
    keras.utils.Progbar,
    logging.Handler,
    logging.Logger,
    logging.LoggerAdapter,
    tf.summary.SummaryWriter,
)

_OF_BAR = ("total", "n", "desc", "unit", "leave", "disable")


def is_output(value: object) -> bool:
    """Return whether ``value`` is a progress bar or a log."""
    return isinstance(value, _OUTPUT) or _is_bar(value)


def _is_bar(value: object) -> bool:
    cls = type(value)
    return module_of(cls).partition(".")[0] == "tqdm" and hasattr(cls, "set_postfix")


def put_output(value: Any, where: str, class_of: Callable[[type], Json]) -> Json:
    """Encode a progress bar or a logger made during training: its settings, not its output.

    Raises:
        NotPlainError: Its target is unknown.
    """
    if type(value) is logging.Logger and logging.getLogger(value.name) is value:
        return {TAG: "logger", "v": value.name}
    if type(value) is keras.utils.Progbar:
        shown = {"target": value.target, "unit_name": value.unit_name, "verbose": value.verbose}
        return {
            TAG: "progress",
            "v": {**shown, "stateful_metrics": sorted(value.stateful_metrics)},
        }
    if _is_bar(value) and value.iterable is None:
        shown = {name: getattr(value, name, None) for name in _OF_BAR}
        return {TAG: "bar", "class": class_of(type(value)), "v": shown}
    what = f"a {class_name(type(value))} made during training; make it in the factory"
    raise NotPlainError(where, value, what)


def take_output(body: Mapping[str, Any], class_of: Callable[[Json], Any]) -> Any:
    """Return the inverse of `put_output`."""
    shown = body["v"]
    if body[TAG] == "logger":
        return logging.getLogger(shown)
    if body[TAG] == "progress":
        return keras.utils.Progbar(**shown)
    cls = class_of(body["class"])
    if not module_of(cls).startswith("tqdm"):
        msg = f"it contains a progress bar, and {cls.__name__} is not one now"
        raise UnplaceableError(msg)
    return cls(
        total=shown["total"],
        initial=shown["n"],
        desc=(shown["desc"] or "").removesuffix(": ") or None,
        unit=shown["unit"],
        leave=shown["leave"],
        disable=shown["disable"],
    )
