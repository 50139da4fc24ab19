"""Comparison of two checkpoints of one trial at one step, value by value, in the user's names.

`sweeper check`, `sweeper verify` and audits all use it. The manifests have each tensor's digest, so
equal tensors are not read. All other state is compared as stored, as plain values. Names that Keras
generates may differ between processes, and are not compared.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeper.checkpoint.format import STATE_FILE, Manifest, decode_values, relocated
from sweeper.checkpoint.reading import load_checkpoint, read_file, read_manifest
from sweeper.checkpoint.tensors import Array, TensorEntry
from sweeper.records.findings import Finding, Level, Line, ranked
from sweeper.records.printing import counted
from sweeper.replay.reports import UserObjects
from sweeper.support.paths import Location

VARIABLES = ("model", "optimizer", "optimizers", "metrics", "reachable")
"""Components whose state is a list of their variables' names."""

_EXACT = frozenset({*VARIABLES, "global_seed_generator", "position", "end"})
"""Components whose differences are never excused."""

_OF_FILES = ("file_size", "event_files")
"""Lengths of the files of CSVLogger and TensorBoard, to which a resume truncates them. No result
depends on them: they vary with the digits of measured times and with times in file names.
"""

READ_AHEAD = "/iterator"
"""Suffix of the names of tensors with tf.data's read-ahead position, which depends on timing and
has no effect. If other data differ, later steps differ too.
"""

_USERS = "user_state"
_SHOWN = 60
"""Characters of a value in a message."""

_EPOCHS = "history/epochs/"

_LISTED = 3
"""Differences that a message lists."""

_MOST_ELEMENTS = 4096
"""Size of the largest array whose differing elements are recorded; of a larger one, the whole value is."""

_STRUCTURE = frozenset({"v", "items", "values", "attributes", "set", "value", "packed"})
"""Keys of the encoding, which are not the user's."""

_MEMBER = re.compile(r"^(callback [^.:'\[]+(?: \[\d+\])?)\.(\w+)(.*)$")

_QUOTED = re.compile(r"(?<!\w)'([^']*)'")

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two checkpoints of a trial at one step.

    Attributes:
        component: Component of the training's state, such as ``"optimizer"``.
        path: Exact path of the value, equal in every comparison of the same trial.
        name: The user's name for the value.
        how: Both values, or the largest deviation.
        level: ``"error"`` until the difference is excused.
        excusable: Whether the path is excused if it also differs between uninterrupted runs.
            Weights, the optimizer, metrics, generators and the objective are never excused.
        elements: Indices of the differing elements of a small array; None for a whole value.
        advice: Meaning of the difference, and advice.
    """

    component: str
    path: str
    name: str
    how: str
    level: Level = "error"
    excusable: bool = True
    elements: frozenset[int] | None = None
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.how}{f' ({self.advice})' if self.advice else ''}"

    @property
    def epoch(self) -> int | None:
        """Return the epoch of a metric, or None for another value."""
        return int(self.path.split("/")[2]) if self.path.startswith(_EPOCHS) else None

    @property
    def is_of_metrics(self) -> bool:
        """Return whether it is a metric in the history, or in the logs of the last step."""
        return self.path.startswith(("history", "position/logs"))

    def is_within(self, elements: frozenset[int] | None) -> bool:
        """Return whether the differing elements are among ``elements``; None is the whole value."""
        return elements is None or (self.elements is not None and self.elements <= elements)


def compare_checkpoints(
    first: Location,
    second: Location,
    *,
    directories: tuple[str, str] = ("", ""),
    objectives: Sequence[str] = (),
    sides: tuple[str, str] = ("undisturbed", "resumed"),
) -> list[Difference]:
    """Return every difference between the checkpoints of a trial and its replay, the most severe first.

    ``directories`` are the trial's in each of the two processes, and ``sides`` their names in messages.

    Raises:
        CheckpointError: One cannot be read.
    """
    first_state, second_state = (
        decode_values(read_file(path, STATE_FILE)) for path in (first, second)
    )
    comparison = _Comparison(first_state, objectives, sides)
    moved = relocated(second_state, directories[1], directories[0])
    return ranked([*comparison.tensors(first, second), *comparison.values(first_state, moved)])


def compare_model(
    first: Mapping[str, Array],
    second: Mapping[str, Array],
    state: Mapping[str, Any],
    sides: tuple[str, str],
) -> list[Difference]:
    """Return the differences between the variables of two models, given as tensors by name."""
    comparison = _Comparison(state, (), sides)
    names = [n for n in dict.fromkeys([*first, *second]) if n.startswith("model/")]
    differing = [n for n in names if _content(first.get(n)) != _content(second.get(n))]
    return [comparison.tensor(n, first.get(n), second.get(n)) for n in differing]


def compare_epochs(
    first: Mapping[int, Mapping[str, float]],
    second: Mapping[int, Mapping[str, float]],
    *,
    objectives: Sequence[str] = (),
    sides: tuple[str, str] = ("undisturbed", "resumed"),
) -> list[Difference]:
    """Return the differences between the metrics of two runs.

    Their paths are those of the same values in a checkpoint's history.
    """
    histories = (
        {"history": {"epochs": {epoch: {1: dict(metrics[epoch])} for epoch in sorted(metrics)}}}
        for metrics in (first, second)
    )
    return ranked(_Comparison({}, objectives, sides).values(*histories))


def compare_ends(
    first: Mapping[str, Any], second: Mapping[str, Any], sides: tuple[str, str]
) -> list[Difference]:
    """Return the differences between the results of two runs, by the names of the results."""
    comparison = _Comparison({}, (), sides)
    return list(comparison.values({"end": dict(first)}, {"end": dict(second)}))


def compare_digests(first: str, second: str, sides: tuple[str, str]) -> list[Difference]:
    """Return the difference between a checkpoint whose files cannot be read and its replay's."""
    if first == second:
        return []
    how = f"{first} {sides[0]}, {second} {sides[1]}"
    return [Difference("digest", "digest", "the digest", how, excusable=False)]


def variable_names(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's names of tensors by their names in the file."""
    return {
        f"{component}/{index:05d}": f"{component} variable {index} ({path})"
        for component in VARIABLES
        for index, path in enumerate(state.get(component) or ())
    }


def tensor_entries(manifest: Manifest) -> dict[str, TensorEntry]:
    """Return a manifest's tensors by name: first those in the digest, in its order."""
    entries = {entry.name: entry for entry in manifest.tensors}
    return {name: entries[name] for name in [*manifest.digest_names, *sorted(entries)]}


def _is_excusable(path: Sequence[str | int], objectives: Sequence[str]) -> bool:
    """Return whether a difference at ``path`` may be excused: objectives and the loss never are."""
    component = str(path[0])
    if any(part in (*objectives, "loss") for part in path[1:]) and component != "callbacks":
        return False
    # A metric may be measured; whether there is an epoch is not.
    if tuple(path[:2]) == ("history", "epochs") and len(path) == 3:
        return False
    # What a step reported may be measured; where training stands is not.
    measured = component == "position" and "logs" in path
    return measured or not (component in _EXACT or component.endswith("_random"))


@dataclass
class _Comparison:
    state: Mapping[str, Any]
    objectives: Sequence[str]
    sides: tuple[str, str]

    def __post_init__(self) -> None:
        self._names = variable_names(self.state)

    def tensors(self, first: Location, second: Location) -> Iterator[Difference]:
        first_entries = tensor_entries(read_manifest(first))
        second_entries = tensor_entries(read_manifest(second))
        differing = [
            name
            for name in dict.fromkeys((*first_entries, *second_entries))
            if first_entries.get(name) != second_entries.get(name) and not name.endswith(READ_AHEAD)
        ]
        if not differing:
            return
        first_tensors = load_checkpoint(first).tensors
        second_tensors = load_checkpoint(second).tensors
        for name in differing:
            yield self.tensor(name, first_tensors.get(name), second_tensors.get(name))

    def tensor(self, name: str, one: Array | None, other: Array | None) -> Difference:
        """Return the difference between two tensors of one name, one of which may be missing."""
        if one is None or other is None:
            return self._differs(name, f"only {self.sides[one is None]}")
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            shapes = [f"{tensor.dtype.name}{list(tensor.shape)}" for tensor in (one, other)]
            return self._differs(name, self._both(*shapes))
        if one.size == 1:
            return self._differs(name, self._both(*(str(a.reshape(-1)[0]) for a in (one, other))))
        bits = one.reshape(-1).view(np.uint8) != other.reshape(-1).view(np.uint8)
        indices = np.flatnonzero(bits.reshape(one.size, -1).any(axis=1))
        deviation = f"differs in {len(indices)} of {one.size} values"
        if one.dtype.kind in "fiu":
            largest = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
            deviation += f", by at most {largest:.3g}"
        few = one.size <= _MOST_ELEMENTS
        return self._differs(name, deviation, frozenset(map(int, indices)) if few else None)

    def values(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
        for component in dict.fromkeys((*first, *second)):
            one, other = (state.get(component, _MISSING) for state in (first, second))
            if component in VARIABLES:
                one, other = (len(state.get(component) or ()) for state in (first, second))
            elif component == _USERS and _MISSING not in (one, other):
                yield from self._left_out(one, other)
                one = _of_users(one)
                other = _of_users(other)
            for path, a, b in _walk(one, other, (component,)):
                if component == "callbacks" and len(path) > 2 and path[2] in _OF_FILES:
                    continue
                yield Difference(
                    component=str(path[0]),
                    path="/".join(map(str, path)),
                    name=_called(path, self.state),
                    how=self._both(_short(a), _short(b)),
                    excusable=_is_excusable(path, self.objectives),
                )

    def _left_out(
        self, first: Mapping[str, Any], second: Mapping[str, Any]
    ) -> Iterator[Difference]:
        """Yield differing attributes that training changes and a callback's get_state leaves out."""
        if "left_out" not in first or "left_out" not in second:
            return
        fingerprints = [dict(state["left_out"]) for state in (first, second)]
        for name in dict.fromkeys([*fingerprints[0], *fingerprints[1]]):
            one, other = (
                fingerprint.get(name, "as training began") for fingerprint in fingerprints
            )
            if one != other:
                yield Difference(
                    component="callbacks",
                    path=f"callbacks/left out/{name}",
                    name=_attribute(name),
                    how=self._both(one, other),
                    advice=(
                        "get_state() leaves it out, so it is lost on resume; return it there, or "
                        "exempt a callback that only writes with trial.output_only(…)"
                    ),
                )

    def _differs(
        self, name: str, deviation: str, elements: frozenset[int] | None = None
    ) -> Difference:
        path = tuple(int(p) if p.isdigit() else p for p in name.split("/"))
        variable, separator, replica = name.partition("/replica-")
        label = self._names.get(variable if separator else name)
        if label is not None and separator:
            label = f"{label} on replica {replica}"
        elif label is None and path[0] == _USERS:
            label = _attribute(name.removeprefix(f"{_USERS}/"))
        return Difference(
            component=str(path[0]),
            path=name,
            name=label or _called(path, self.state),
            how=deviation,
            excusable=_is_excusable(path, self.objectives),
            elements=elements,
        )

    def _both(self, one: str, other: str) -> str:
        return f"{one} {self.sides[0]}, {other} {self.sides[1]}"


def _content(tensor: Array | None) -> object:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.tobytes())


def _of_users(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the user's objects, by the path of each attribute."""
    values: dict[str, Any] = {}
    for holder, node in saved["changed"].items():
        if "set" not in node:
            values[holder] = node
            continue
        kind = "variable" if holder.startswith("module ") else "attribute"
        for name, value in node["set"].items():
            values[f"{holder}: {kind} {name!r}"] = value
        for name in node["gone"]:
            values[f"{holder}: {kind} {name!r}"] = {"!": "nothing"}
    return values


def _walk(first: Any, second: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """Yield the paths at which two plain values differ, and the two values there."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if "!" in first and first.get("!") == second.get("!"):
            pairs = [_pairs(value.get("v")) for value in (first, second)]
            if pairs[0] is not None and pairs[1] is not None:
                first, second = pairs
            elif set(first) == set(second) == {"!", "v"}:
                yield from _walk(first["v"], second["v"], path)
                return
        for key in dict.fromkeys((*first, *second)):
            one = first.get(key, _MISSING)
            other = second.get(key, _MISSING)
            if key == "items":
                one, other = (_pairs(value) or value for value in (one, other))
            yield from _walk(one, other, (*path, key))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _walk(one, other, (*path, index))
    elif _text(first) != _text(second):
        yield path, first, second


_MISSING = object()


def _pairs(value: Any) -> dict[str, Any] | None:
    """Return a dictionary that is stored as a list of pairs; None for other values."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(item, list) and len(item) == 2 for item in value):
        return None
    return {key if isinstance(key, str) else _text(key): item for key, item in value}


def _called(path: Path, state: Mapping[str, Any]) -> str:
    """Return the user's name for a path in the state."""
    component = path[0]
    rest = list(path[1:])
    if component == "end":
        return f"the final {path[1]}"
    if component == _USERS and rest:
        return f"{_attribute(str(rest[0]))}{_keys(rest[1:])}"
    if component == "callbacks" and rest and isinstance(rest[0], int):
        entries = state.get("callbacks") or []
        index = int(rest.pop(0))
        name = entries[index]["name"] if index < len(entries) else f"callback {index}"
        if rest[:1] == ["state"]:
            return f"{name}, get_state(){_keys(rest[1:])}"
        return f"{name}, {_keys(rest)}" if rest else name
    if component == "history" and len(rest) == 2 and rest[0] == "epochs":
        return f"epoch {int(rest[1]) + 1}"
    if component == "history" and len(rest) == 4 and rest[0] == "epochs":
        return f"the history's {rest[3]!r} of epoch {int(rest[1]) + 1}"
    words = str(component).replace("_", " ")
    return f"{words}, {'/'.join(map(str, rest))!r}" if rest else f"the state of {words}"


def _keys(path: Sequence[str | int]) -> str:
    return "".join(f"[{part!r}]" for part in path if part not in _STRUCTURE)


def _attribute(path: str) -> str:
    """Return a path of the walk with its first attribute in words: ``callback X, attribute 'y'``."""
    for kind in ("attribute", "variable"):
        path = path.replace(f": {kind} '", f", {kind} '")
    member = _MEMBER.match(path)
    return f"{member[1]}, attribute {member[2]!r}{member[3]}" if member else path


def _short(value: Any) -> str:
    while isinstance(value, Mapping) and value.get("!") == "leaf":
        value = value["v"]
    text = repr(value) if isinstance(value, str) else _text(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _text(value: Any) -> str:
    return "missing" if value is _MISSING else json.dumps(value, sort_keys=True)


def judge(
    differences: Iterable[Difference],
    baseline: Iterable[Difference],
    user_objects: UserObjects | None,
) -> list[Difference]:
    """Return the differences, the most severe first, with excused differences as notes.

    A date or a rounded time can be equal in two uninterrupted runs and differ in a third, so values that
    the user's code computes from a clock are excused, too: their own paths, and not other state of the same
    callback. ``baseline`` are the differences between two equal runs, which excuse the same paths.
    """
    callbacks = () if user_objects is None else user_objects.callbacks
    measured = {callback.name: callback.measured for callback in callbacks}
    elements: dict[str, list[frozenset[int] | None]] = {}
    for difference in baseline:
        elements.setdefault(difference.path, []).append(difference.elements)

    def is_excused(difference: Difference) -> bool:
        return difference.excusable and (
            any(map(difference.is_within, elements.get(difference.path, ())))
            or _is_measured(difference, measured)
        )

    return ranked(
        replace(difference, level="note") if is_excused(difference) else difference
        for difference in differences
    )


def _is_measured(difference: Difference, measured: Mapping[str, frozenset[str]]) -> bool:
    quoted = set(_QUOTED.findall(difference.name))
    if difference.component in ("history", "position"):
        # A callback adds it to the logs, and only its name shows which one.
        metrics = {part for name in quoted for part in name.split("/")}
        return any(metrics & names for names in measured.values())
    return any(
        difference.name.startswith(f"callback {owner}") and quoted & names
        for owner, names in measured.items()
    )


def errors(differences: Iterable[Difference]) -> list[Difference]:
    """Return the differences that break the promise of exactness."""
    return [difference for difference in differences if difference.level == "error"]


def listed(differences: Sequence[Difference]) -> str:
    """Return the first differences in words, and the number of the others."""
    # After the first value, only those that are short enough to read.
    short = [d for d in differences[1:] if not d.how.startswith("differs ")]
    selected = [*differences[:1], *short[: _LISTED - 1]]
    rest = len(differences) - len(selected)
    more = f", and {counted(rest, 'more value')} differ" if rest > 1 else ""
    if rest == 1:
        more = ", and 1 more value differs"
    return f"{'; '.join(map(str, selected))}{more}"


def line_of_differences(
    differences: Iterable[Difference], user_objects: UserObjects | None
) -> Line | None:
    """Return the line of the user's callback in which the first difference is, or of a likely one."""
    if user_objects is None:
        return None
    callbacks = [callback for callback in user_objects.callbacks if callback.line is not None]
    for difference in differences:
        candidates = [c for c in callbacks if difference.name.startswith(f"callback {c.name}")]
        if candidates:
            return max(candidates, key=lambda callback: len(callback.name)).line
    return callbacks[0].line if callbacks else user_objects.model.line


def notes_on_excused(
    differences: Iterable[Difference], user_objects: UserObjects | None
) -> list[Finding]:
    """Return notes on the values that differ between two runs without any effect on a result."""
    by_name = {d.name: d for d in differences if d.level == "note"}
    excused = list(by_name.values())
    notes = [
        Finding(
            "note",
            "determinism",
            f"{difference.name} differs between two runs of the same trial ({difference.how}); no result "
            "depends on it",
            line_of_differences([difference], user_objects),
        )
        for difference in excused[:_LISTED]
    ]
    if len(excused) > _LISTED:
        rest = counted(len(excused) - _LISTED, "more value")
        notes.append(
            Finding("note", "determinism", f"{rest} without an effect on a result, as the above")
        )
    return notes
