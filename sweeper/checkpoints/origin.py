"""Origin of a checkpoint: its study, trial, seed, definition and parameters.

A checkpoint that verifies is whole, which says nothing about whose it is. A directory outlives the
database that filled it, and two databases can be given one directory; going on from what another
study left there gives a result that is neither's. So every manifest bears its origin, and a reader
that knows its own refuses every other one by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of one checkpoint.

    Attributes:
        study: The study's name; empty for a training without a study.
        identity: The study's random identity in its database; of a training without a study, its
            directory's.
        trial: The trial's number.
        seed: The study's seed.
        definition: Fingerprint of the study's definition, or of a training's data. Empty for one
            who only looks after the checkpoints: then those of every definition and seed are meant.
        parameters: The trial's, by name.
        former: Fingerprints of definitions whose checkpoints are gone on with too, because somebody
            accepted the change. Not written down.
        directory: `Trial.directory` when it was written, which paths in its state may begin with;
            empty where there is none. It may be another one later.
    """

    study: str
    identity: str
    trial: int
    seed: int
    definition: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    directory: str = ""

    def of(self, parameters: Mapping[str, Any], directory: str) -> Origin:
        """Return the same origin with these parameters and this `Trial.directory`."""
        return replace(self, parameters=dict(parameters), directory=directory)

    def to_json(self) -> dict[str, Any]:
        """Return the form that a manifest holds."""
        return {
            "study": self.study,
            "identity": self.identity,
            "trial": self.trial,
            "seed": self.seed,
            "definition": self.definition,
            "parameters": dict(self.parameters),
            "directory": self.directory,
        }

    @classmethod
    def from_json(cls, content: Any) -> Origin:
        """Read the form that `to_json` returns.

        Raises:
            ValueError, TypeError, KeyError: It is no such content.
        """
        texts = [content[name] for name in ("study", "identity", "definition", "directory")]
        numbers = [content[name] for name in ("trial", "seed")]
        if not all(isinstance(text, str) for text in texts):
            msg = f"its origin has no names: {texts!r}"
            raise ValueError(msg)
        if any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            msg = f"its origin has no numbers: {numbers!r}"
            raise ValueError(msg)
        study, identity, definition, directory = texts
        return cls(
            study=study,
            identity=identity,
            trial=numbers[0],
            seed=numbers[1],
            definition=definition,
            parameters=dict(content["parameters"]),
            directory=directory,
        )

    def differences(self, found: Origin) -> list[str]:
        """Return the reasons not to resume from a checkpoint of ``found``, one phrase each; empty if it may be used.

        A study is its identity: its name is another one once it has been set aside. A trial may ask for further parameters while it trains, so only those that both have count.
        """
        if found.identity != self.identity:
            return [_studies(found, self)]
        different = []
        if found.trial != self.trial:
            different.append(f"it is of trial {found.trial}, and this is trial {self.trial}")
        if not self.definition:
            return different
        if found.definition not in (self.definition, *self.former):
            different.append(
                f"it is of a definition with the fingerprint {found.definition[:8]}, and the "
                f"study's is {self.definition[:8]}"
                if self.study
                else "it was trained on other data"
            )
        if found.seed != self.seed and found.definition not in self.former:
            different.append(f"its seed was {found.seed}, and this one's is {self.seed}")
        for name in sorted(found.parameters.keys() & self.parameters.keys()):
            was, now = found.parameters[name], self.parameters[name]
            if repr(was) != repr(now):
                different.append(f"its {name} was {was!r}, and is {now!r} now")
        return different


def _studies(found: Origin, expected: Origin) -> str:
    if not expected.study:
        return f"it is of {_described(found)}"
    if found.study == expected.study:
        return (
            f"it is of another study {found.study!r} (identity {found.identity[:8]}, seed "
            f"{found.seed}), and this one is {expected.identity[:8]} (seed {expected.seed})"
        )
    return f"it is of {_described(found)}, and this is study {expected.study!r}"


def _described(found: Origin) -> str:
    name = f"study {found.study!r}" if found.study else "a training without a study"
    return f"{name} (identity {found.identity[:8]}, seed {found.seed})"
