"""What a file to begin from is to the rest: names of a model's variables, and the values under them.

A format is one class with these methods. Names are the format's business: each derives, from the
model, under which of its own keys a variable's value is; comparing shapes and types, strictness and
reports are the same for all, in `matching`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sweeper.checkpoints.tensors import Array
from sweeper.training.warmstart.options import WarmStart


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in a file: its shape, and NumPy's name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variable of the model, and where a file has its value.

    Attributes:
        variable: Keras's, or a ``tf.Variable``.
        name: What it is called in reports.
        key: The file's; None where it has none.
        looked_for: The names under which it was looked for.
        reason: Why it has no key, where there is more to say than that.
    """

    variable: Any = field(repr=False)
    name: str
    key: str | None
    looked_for: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Matched:
    """Each variable of a model with its key in a file, and what else the file has of a model.

    Attributes:
        extra: Names of values for which the model has no variable, by their keys.
        shown: What a key is called for a person, where that is not the key itself.
    """

    candidates: tuple[Candidate, ...]
    extra: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)


class WarmStartSource(Protocol):
    """One open file."""

    @property
    def kind(self) -> str:
        """What it is, for a person: ``"Keras weights"``."""
        ...

    def match(self, model: Any, options: WarmStart) -> Matched:
        """Where the values of the model's variables are; nothing is read yet.

        Raises:
            WarmStartError: More than one part of the file could be the model.
        """
        ...

    def match_optimizer(self, optimizer: Any) -> Matched:
        """Where the values of the optimizer's variables are.

        Raises:
            WarmStartError: The file has none, or not in a form that can be recognized.
        """
        ...

    def stored(self, key: str) -> Stored:
        """The shape and dtype of the value under ``key``."""
        ...

    def read(self, key: str) -> Array:
        """The value under ``key``, in memory of its own.

        Raises:
            WarmStartError: The file is damaged there.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def variables_of(model: Any) -> list[Any]:
    """The model's variables, each once, but for the states of random generators."""
    found = {id(v): v for v in model.variables if not is_random_state(v.path)}
    return list(found.values())


def is_random_state(name: str) -> bool:
    """Whether a variable of this name is a random generator's, which is the trial's own."""
    return name.rpartition("/")[2] in ("seed_generator_state", "_state_var")


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """``name`` with the longest of its beginnings that ``rename`` has replaced."""
    for old in sorted(rename, key=len, reverse=True):
        if name == old or name.startswith(f"{old}/"):
            return f"{rename[old]}{name[len(old) :]}"
    return name


def by_names(
    variables: Sequence[tuple[Any, Sequence[str]]],
    keys: Mapping[str, str],
    rename: Mapping[str, str],
) -> Matched:
    """Match variables by names of which each has several, the first that is there counts.

    Args:
        variables: Each with its names, the likeliest first.
        keys: The file's names, with their keys.
        rename: As `WarmStart` has it.
    """
    candidates = []
    for variable, names in variables:
        wanted = tuple(dict.fromkeys(renamed(name, rename) for name in names))
        key = next((keys[name] for name in wanted if name in keys), None)
        candidates.append(Candidate(variable, variable.path, key, wanted))
    taken = {candidate.key for candidate in candidates}
    extra = {
        key: name for name, key in keys.items() if key not in taken and not is_random_state(name)
    }
    return Matched(tuple(candidates), extra, {key: name for name, key in keys.items()})
