"""How a parameter's distribution travels in a message: as JSON that names its kind.

The name is needed: a range of integers reads as one of floats just as well.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Discriminator,
    SerializerFunctionWrapHandler,
    Tag,
    WrapSerializer,
)

from sweeper.declared.space import Categorical, FloatRange, IntRange


def _kind_of(distribution: Any) -> str:
    if isinstance(distribution, dict):
        return str(distribution.get("kind"))
    return type(distribution).__name__


def _with_kind(distribution: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return {"kind": type(distribution).__name__, **handler(distribution)}


def _without_kind(distribution: Any) -> Any:
    if isinstance(distribution, dict):
        return {name: value for name, value in distribution.items() if name != "kind"}
    return distribution


_writes, _reads = WrapSerializer(_with_kind), BeforeValidator(_without_kind)
SentDistribution = Annotated[
    Annotated[FloatRange, _writes, _reads, Tag("FloatRange")]
    | Annotated[IntRange, _writes, _reads, Tag("IntRange")]
    | Annotated[Categorical, _writes, _reads, Tag("Categorical")],
    Discriminator(_kind_of),
]
