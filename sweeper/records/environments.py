"""Under which surroundings a study's attempts ran, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Environment:
    """Surroundings that attempts of a study had in common.

    Attributes:
        versions: Of Python and the libraries that compute; empty of attempts that ended before
            they could say.
        processor: Its name.
        devices: Kinds and names of the devices that TensorFlow saw.
        threads: TensorFlow's, within an op and between ops.
        deterministic: Whether kernels had to be deterministic.
        hosts: Where the attempts ran.
        attempts: How many they are.
    """

    versions: Mapping[str, str]
    processor: str
    devices: tuple[str, ...]
    threads: tuple[int, ...]
    deterministic: bool | None
    hosts: tuple[str, ...]
    attempts: int
