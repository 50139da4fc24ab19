"""Two checkpoints of one trial at one step, compared value by value, in the user's names.

The manifests have each tensor's digest, so equal tensors are never read. Everything else is compared
as the plain values that it is stored as. Names that Keras makes up may differ from process to
process, and are no values; the time that training took is none either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.checkpoints.format import STATE_FILE, Manifest
from sweeper.checkpoints.reading import load_checkpoint, read_manifest
from sweeper.checkpoints.tensors import Array, TensorEntry
from sweeper.checkpoints.values import decode_values, relocated

_LISTED = ("model", "optimizer", "optimizers", "metrics", "reachable")
"""The components of a checkpoint's state that name their variables, in their order."""

_EXACT = frozenset({*_LISTED, "global_seed_generator", "position"})
"""Components that hold nothing which may differ in every run, as a measured time does."""

_OF_FILES = frozenset({"file_size"})
"""What says how long a file's text is, and so how many digits measured times have in it."""

READ_AHEAD = "/iterator"
"""Ends the names of tensors that say how far tf.data has read ahead: a matter of timing, whose
effect is the same. Where they differ in more, the steps after them do.
"""

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that two checkpoints do not have alike.

    Attributes:
        component: Of the state, such as ``"optimizer"``.
        path: Where it is, the same for every comparison of the same trial.
        name: What the user calls it.
        how: Both values where they are short; else how far they are apart.
        exact: Whether it must not differ whatever it holds. Others may hold a measured time: they
            are no difference if a second replay has yet another value.
        second: The second checkpoint's value, to tell that by.
    """

    component: str
    path: str
    name: str
    how: str
    exact: bool
    second: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.how}"


def variable_names(state: Mapping[str, Any]) -> dict[str, str]:
    """What the user calls the tensors of a checkpoint's ``state``, by their names in its file."""
    return {
        f"{component}/{index:05d}": f"{component} variable {index} ({path})"
        for component in _LISTED
        for index, path in enumerate(state.get(component) or ())
    }


def variable_name(name: str, names: Mapping[str, str]) -> str | None:
    """What the user calls the tensor ``name``, of `variable_names`; None for no variable's."""
    variable, found, replica = name.partition("/replica-")
    if not found or variable not in names:
        return names.get(name)
    return f"{names[variable]} on replica {replica}"


def random_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint's state has of random generators beside their tensors, by component."""
    return {name: value for name, value in state.items() if name.endswith("_random")}


def tensor_entries(manifest: Manifest) -> dict[str, TensorEntry]:
    """By name: those that the digest is of first, in its order."""
    entries = {entry.name: entry for entry in manifest.tensors}
    return {name: entries[name] for name in [*manifest.digest_names, *sorted(entries)]}


def how_tensors_differ(ours: Array | None, theirs: Array | None, who: tuple[str, str]) -> str:
    """How far two tensors of one name are apart, one of which may be missing.

    Args:
        ours: One tensor.
        theirs: The other.
        who: What the two checkpoints are called.
    """
    if ours is None or theirs is None:
        return f"only the {who[1] if ours is None else who[0]} has it"
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype.name}{list(ours.shape)} and {theirs.dtype.name}{list(theirs.shape)}"
    bits = ours.reshape(-1).view(np.uint8) != theirs.reshape(-1).view(np.uint8)
    count = int(bits.reshape(ours.size, -1).any(axis=1).sum())
    share = f"in {count} of {ours.size} values"
    if ours.dtype.kind not in "fiu":
        return share
    apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    return f"{share}, by at most {apart:.3g}"


def compare_checkpoints(
    first: Path,
    second: Path,
    *,
    directories: tuple[str, str] = ("", ""),
    objectives: Sequence[str] = (),
) -> list[Difference]:
    """Everything in which two checkpoints differ, the variables first.

    Args:
        first: The trial's own.
        second: The replay's.
        directories: Directories that are the same one to the first and to the second.
        objectives: Metrics that must not differ.

    Raises:
        CheckpointError: One cannot be read.
    """
    states = [decode_values((path / STATE_FILE).read_bytes()) for path in (first, second)]
    states[1] = relocated(states[1], directories[1], directories[0])
    found = list(_tensors(first, second, states[0]))
    for component in dict.fromkeys((*states[0], *states[1])):
        ours, theirs = (state.get(component, _MISSING) for state in states)
        if component in _LISTED:
            ours, theirs = (len(state.get(component) or ()) for state in states)
        for path, one, other in _walk(ours, theirs, (component,)):
            if path[-1] in _OF_FILES:
                continue
            # What a step reported may be measured; where training stands is not.
            measured = component == "position" and "logs" in path
            exact = (_is_exact(_owner(path)) and not measured) or path[-1] in (*objectives, "loss")
            found.append(
                Difference(
                    component=component,
                    path="/".join(map(str, path)),
                    name=_called(path, states[0]),
                    how=f"is {_short(one)}, and {_short(other)} after the resume",
                    exact=exact,
                    second=_text(other),
                )
            )
    return found


def _tensors(first: Path, second: Path, state: Mapping[str, Any]) -> Iterator[Difference]:
    ours, theirs = tensor_entries(read_manifest(first)), tensor_entries(read_manifest(second))
    names = variable_names(state)
    parted = [
        name
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name) and not name.endswith(READ_AHEAD)
    ]
    loaded = [load_checkpoint(path).tensors for path in (first, second)] if parted else []
    for name in parted:
        one, other = (tensors.get(name) for tensors in loaded)
        component, _, rest = name.partition("/")
        how = f"differs ({how_tensors_differ(one, other, ('trial', 'resumed one'))})"
        if one is not None and other is not None and one.size == 1 == other.size:
            how = f"is {one.reshape(-1)[0]}, and {other.reshape(-1)[0]} after the resume"
        path = (component, *(int(p) if p.isdigit() else p for p in rest.split("/")))
        yield Difference(
            component=component,
            path=name,
            name=variable_name(name, names) or _called(path, state),
            how=how,
            exact=_is_exact(_owner(path)),
            second=theirs[name].digest if name in theirs else "",
        )


def _owner(path: Sequence[str | int]) -> str:
    """The component that a path belongs to, be it another process's of the trial.

    Those have their tensors below ``processes/<index>/``, and their values in the state ``processes``.
    """
    if path[0] != "processes":
        return str(path[0])
    below = path[4:] if path[1] == "apart" else path[2:]
    return str(below[0]) if below else "processes"


def _is_exact(component: str) -> bool:
    return component in _EXACT or component.endswith("_random")


def _walk(
    ours: Any, theirs: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """The paths at which two plain values differ, and what each has there."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if "!" in ours and ours.get("!") == theirs.get("!"):
            pairs = [_pairs(value.get("v")) for value in (ours, theirs)]
            if pairs[0] is not None and pairs[1] is not None:
                ours, theirs = pairs
            elif set(ours) == set(theirs) == {"!", "v"}:
                yield from _walk(ours["v"], theirs["v"], path)
                return
        for key in dict.fromkeys((*ours, *theirs)):
            yield from _walk(ours.get(key, _MISSING), theirs.get(key, _MISSING), (*path, key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _walk(one, other, (*path, index))
    elif _text(ours) != _text(theirs):
        yield path, ours, theirs


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()


def _pairs(value: Any) -> dict[str, Any] | None:
    """A dictionary that is stored as a list of pairs, by its keys; None for anything else."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(item, list) and len(item) == 2 for item in value):
        return None
    return {key if isinstance(key, str) else _text(key): item for key, item in value}


def _called(path: Sequence[str | int], state: Mapping[str, Any]) -> str:
    """A path in the state, as the user calls it."""
    component, rest = path[0], [str(part) for part in path[1:]]
    if component == "callbacks" and rest and rest[0].isdigit():
        entries = state.get("callbacks") or []
        index = int(rest.pop(0))
        name = entries[index]["class"] if index < len(entries) else str(index)
        if rest and rest[0] in ("attributes", "methods", "state"):
            rest.pop(0)
        return f"callback {name}, {'/'.join(rest)!r}," if rest else f"callback {name}"
    words = str(component).replace("_", " ")
    return f"{words}, {'/'.join(rest)!r}," if rest else f"the state of {words}"


def _short(value: Any) -> str:
    text = "missing" if value is _MISSING else _text(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _text(value: Any) -> str:
    return repr(value) if value is _MISSING else json.dumps(value, sort_keys=True)
