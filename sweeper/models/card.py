"""Card beside an exported model, and the result of an export: origin, content, checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ORDER = (
    *("study", "trial", "state", "at", "step", "epoch", "format"),
    *("objective", "direction", "value", "parameters", "metrics", "seed"),
    *("digest", "model_digest", "definition", "code", "versions", "data", "details", "verified"),
)


def card_paths(path: Path) -> tuple[Path, Path]:
    """Return the paths of the card of the model at ``path``: for programs, and for people."""
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.md")


def card_json(card: Mapping[str, Any]) -> str:
    """Return the card as JSON."""
    ordered = {name: card[name] for name in _ORDER if name in card}
    return json.dumps({**ordered, **card}, indent=2, ensure_ascii=False) + "\n"


def card_markdown(card: Mapping[str, Any], name: str) -> str:
    """Return the card as Markdown.

    Args:
        card: Content of the card.
        name: Name of the file or directory.
    """
    lines = [
        f"# {name}",
        "",
        f"The model of trial {card['trial']} of the study `{card['study']}`, {_moment(card)}.",
        "",
    ]
    for title in ("parameters", "metrics", "details", "verified", "data", "versions"):
        values = card.get(title)
        if values:
            lines += [f"## {title.capitalize()}", "", *_rows(values), ""]
    rest = {
        n: card[n]
        for n in (*_ORDER[6:10], "seed", "digest", "model_digest", "definition", "code")
        if card.get(n) is not None
    }
    lines += ["## Where it comes from", "", *_rows(rest), ""]
    return "\n".join(lines)


def _moment(card: Mapping[str, Any]) -> str:
    moments = {"end": "as training left it", "best": "of its best kept epoch"}
    where = moments.get(str(card["at"]), "of one of its checkpoints")
    return f"{where} (step {card['step']}, {card['epoch']} epochs finished)"


def _rows(values: Mapping[str, Any]) -> list[str]:
    return [f"- {name}: {_shown(value)}" for name, value in values.items()]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"`{name}` {_shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)


@dataclass(frozen=True)
class Exported:
    """An exported model and the result of its check.

    Attributes:
        path: Its file or directory.
        card: Content of its card: the model's origin, the content of the export, and the largest
            difference in predictions.

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
