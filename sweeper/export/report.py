"""Result of an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.export.card import card_paths


@dataclass(frozen=True)
class Exported:
    """A model that was written, and how it was checked.

    Attributes:
        path: Where it is.
        card: What the card beside it says: where the model comes from, what the form holds, and
            by how much its predictions differ.

    Examples:
        >>> exported = study.results().best.export("best.weights.h5", "weights", force=True)
        >>> exported.card["trial"] == study.results().best.number
        True
    """

    path: str
    card: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "cards": [str(each) for each in card_paths(Path(self.path))],
            **self.card,
        }
