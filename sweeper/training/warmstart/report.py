"""What a warm start gave a model, what it did not, and why: for notices, logs and the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MismatchKind = Literal["missing", "extra", "other shape", "other dtype"]

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One variable that does not fit.

    Attributes:
        kind: "missing": the model's, and not in the file. "extra": in the file, and not the model's.
        name: The variable's; of an extra one the file's name.
        what: What was seen and expected.
    """

    kind: MismatchKind
    name: str
    what: str

    def __str__(self) -> str:
        if self.kind == "extra":
            return f"{self.name} ({self.what}) is in it, and not in the model"
        return f"{self.name} is {self.what}"


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """What was compared.

    Attributes:
        path: The file; a checkpoint's directory or prefix.
        kind: What it is, for a person.
        digest: XXH3-128 of its content.
        model: The model's name.
        matched: Each variable that takes a value, with the file's name for it; the model's, then the
            optimizer's.
        of: How many variables the model has, without states of random generators.
        mismatches: All others, and what the file has more.
        optimizer: How many of ``matched`` are the optimizer's.
    """

    path: str
    kind: str
    digest: str
    model: str
    matched: tuple[tuple[str, str], ...]
    of: int
    mismatches: tuple[Mismatch, ...]
    optimizer: int = 0

    def summary(self) -> str:
        """One line, and one for each mismatch."""
        optimizer = f" and {self.optimizer} of its optimizer" if self.optimizer else ""
        head = (
            f"begins from {self.path} ({self.kind}, digest {self.digest[:8]}): "
            f"{len(self.matched) - self.optimizer} of the model's {self.of} variables{optimizer}"
        )
        return "\n  ".join([head, *self._shown()])

    def text(self) -> str:
        """All of it, with each variable that matched."""
        pairs = [f"{name} <- {theirs}" for name, theirs in self.matched]
        return "\n  ".join([self.summary(), *pairs])

    def refusal(self, *, strict: bool) -> str:
        """Why the trial cannot begin from it."""
        head = (
            f"the warm start {self.path} ({self.kind}) does not fit the model {self.model!r} "
            "(nothing was assigned):"
            if strict
            else f"nothing in the warm start {self.path} ({self.kind}) fits the model {self.model!r}:"
        )
        advice = (
            "Give the model that it was written from, or say what it calls otherwise (rename={…})"
        )
        if strict:
            advice += ", what to take of it (only=[…]), or to take what fits (strict=False)"
        return "\n  ".join([head, *self._shown()]) + f"\n{advice}"

    def to_json(self) -> dict[str, Any]:
        """What the database keeps of it."""
        return {
            "path": self.path,
            "kind": self.kind,
            "digest": self.digest,
            "of": self.of,
            "optimizer": self.optimizer,
            "matched": dict(self.matched),
            "mismatches": [[each.kind, each.name, each.what] for each in self.mismatches],
        }

    def _shown(self) -> list[str]:
        shown = [str(each) for each in self.mismatches[:_MOST_SHOWN]]
        more = len(self.mismatches) - len(shown)
        return [*shown, f"and {more} more"] if more else shown


def digests_of(report: Mapping[str, Any]) -> dict[str, str]:
    """What of a report a later attempt is compared by: the file, and its digest."""
    return {str(report["path"]): str(report["digest"])}
