"""Code and environment with which a study was run, as plain values.

`sweeper.inspection.fingerprint` reads the code from the factories, and the database stores it. Comments,
docstrings, line numbers and the file's path do not affect the digests. Values are stored only as digests,
so that no secrets get into the database.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

NO_TEXT = "text not kept"
"""Value of `CodePart.file` for code typed at a prompt or piped into Python, whose text is unknown."""

OF_ENVIRONMENT = "the environment"
"""Value of `CodePart.file` for an environment variable that the code reads.

It differs between machines for good reasons, so that a changed value is reported and not refused.
"""

_NOT_COMPARABLE = (
    "its code was typed at a prompt, piped into Python or edited after its import, so it has no text to "
    "compare with this one"
)
_SHORT = 8
_DIGEST = 32


def short_code(digest: str) -> str:
    """Return the first 8 digits of a fingerprint, for display."""
    return digest[:_SHORT]


def digest_of(*texts: str) -> str:
    """Return the first 32 hex digits of the SHA-256 of ``texts``."""
    whole = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()[:_DIGEST]


@dataclass(frozen=True, slots=True)
class CodePart:
    """A function, class, constant or module of the user's code.

    Attributes:
        digest: Digest of its code.
        file: Name of the file, or "a notebook's cell"; empty if unknown.
        of_search: Whether only the sampler or the pruner reaches it.
    """

    digest: str
    file: str = ""
    of_search: bool = False


@dataclass(frozen=True, slots=True)
class CodeFingerprint:
    """Fingerprint of all user code that a study's factories reach, by name.

    Attributes:
        parts: The parts of the code, by name.
    """

    parts: Mapping[str, CodePart]

    @property
    def has_text(self) -> bool:
        """Return whether the text of the code is known."""
        return all(part.file != NO_TEXT for part in self.parts.values())

    @property
    def environment(self) -> dict[str, str]:
        """Return the digests of the environment variables that the code reads, by name."""
        return {n: part.digest for n, part in self.parts.items() if part.file == OF_ENVIRONMENT}

    @property
    def digest(self) -> str:
        """Return the digest of all names and their code: 32 hex digits, independent of file locations.

        Code of the search alone is left out, because no trial's result depends on it.
        """
        counted = {
            name: part.digest
            for name, part in self.parts.items()
            if not part.of_search and part.file != OF_ENVIRONMENT
        }
        return digest_of(*(text for name in sorted(counted) for text in (name, counted[name])))

    def of_trials(self, trial_code: CodeFingerprint) -> CodeFingerprint:
        """Return the same code, in which what ``trial_code`` do not reach is of the search alone."""
        return CodeFingerprint(
            {
                n: replace(part, of_search=n not in trial_code.parts)
                for n, part in self.parts.items()
            }
        )

    @property
    def short(self) -> str:
        return short_code(self.digest)

    def to_json(self) -> dict[str, Any]:
        return {name: asdict(part) for name, part in sorted(self.parts.items())}

    def to_text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CodeFingerprint:
        return cls(
            {
                name: CodePart(part["digest"], part["file"], part.get("of_search", False))
                for name, part in values.items()
            }
        )

    def changes_since(
        self, before: CodeFingerprint, *, of_search: bool | None = None
    ) -> tuple[str, ...]:
        """Return the differences from ``before``, one phrase each, with name and file.

        ``of_search`` selects those of the search alone, or those of trials; None selects all.
        """
        if self.has_text and not before.has_text:
            return () if of_search else (_NOT_COMPARABLE,)
        changes = []
        for name in sorted({*before.parts, *self.parts} - {*before.environment, *self.environment}):
            old_part = before.parts.get(name)
            new_part = self.parts.get(name)
            free = all(part is None or part.of_search for part in (old_part, new_part))
            if of_search is not None and free != of_search:
                continue
            if old_part is None and new_part is not None:
                changes.append(f"{name} is new{_in(new_part.file)}")
            elif old_part is not None and new_part is None:
                changes.append(f"{name} is no longer used{_in(old_part.file, 'it was in ')}")
            elif (
                old_part is not None and new_part is not None and old_part.digest != new_part.digest
            ):
                changes.append(f"{name} has changed{_in(new_part.file)}")
        return tuple(changes)


@dataclass(frozen=True, slots=True)
class CodeGroup:
    """Trials of a study that ran under the same definition and code.

    Attributes:
        code: Short form of the fingerprint; several joined by ``+`` for trials that were resumed under
            another one.
        current: Whether this is the study's present definition.
        trials: Numbers of the trials.
        best: Number of the best complete trial; None if there is none, or with several objectives.
        value: The objective of that trial.

    Examples:
        >>> [group.code for group in study.status().codes]  # empty if all ran under one code
        []
    """

    code: str
    current: bool
    trials: tuple[int, ...]
    best: int | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "current": self.current,
            "trials": list(self.trials),
            "best": None if self.best is None else {"number": self.best, "value": self.value},
        }


def _in(location: str, lead: str = "") -> str:
    return f" ({lead}{location})" if location else ""


@dataclass(frozen=True, slots=True)
class Environment:
    """Common environment of several attempts of a study.

    Attributes:
        versions: Versions of Python and the libraries; empty for attempts that ended before they
            reported them.
        processor: Name of the processor.
        devices: Kinds and names of TensorFlow's devices.
        threads: TensorFlow's numbers of threads within an op and between ops.
        deterministic: Whether deterministic kernels were required; None if unknown.
        hosts: Host names of the machines.
        attempts: Number of attempts.
    """

    versions: Mapping[str, str]
    processor: str
    devices: tuple[str, ...]
    threads: tuple[int, ...]
    deterministic: bool | None
    hosts: tuple[str, ...]
    attempts: int
