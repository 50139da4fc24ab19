"""What travels through the pipe between a worker and its trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from pydantic import ConfigDict, with_config

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def sendable(cls: type[T]) -> type[T]:
    """Make of a class a frozen dataclass that is read from JSON with exactly its fields."""
    return with_config(ConfigDict(extra="forbid"))(dataclass(frozen=True, slots=True)(cls))
