"""Where everything of a run lies on disk. This module owns every path and checks every name.

::

    runs/                                    --runs-dir, SWEEPER_RUNS_DIR
      sweeper.db                             the default database
      digits-learning-rate/                  a study
        trial-00003/                         a trial
          files/                             Trial.directory: what the user's callbacks write
          attempt-01/                        one process's go at it
            log.txt                          its standard output and error
            checkpoints/step-000000420/      its checkpoints
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import DefinitionError

__all__ = ["RunPaths", "check_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: object, what: str = "study") -> str:
    """Return ``name`` if it can safely be a directory's name.

    Raises:
        DefinitionError: It is no string of 1 to 100 letters, digits, ``.``, ``_`` and ``-`` that
            starts with a letter or digit and does not end with a dot.
    """
    if not isinstance(name, str):
        msg = f"a {what}'s name must be a string, and this one is {name!r}"
        raise DefinitionError(msg)
    if not _NAME.fullmatch(name) or name.endswith("."):
        msg = (
            f"{name!r} cannot be a {what}'s name: it becomes a directory, so use 1 to 100 letters, "
            "digits, '.', '_' or '-', starting with a letter or digit and not ending with '.'"
        )
        raise DefinitionError(msg)
    return name


@dataclass(frozen=True)
class RunPaths:
    """The directories of one study below ``root`` (the runs directory)."""

    root: Path
    study: str

    def __post_init__(self) -> None:
        check_name(self.study)

    @property
    def study_directory(self) -> Path:
        return self.root / self.study

    def trial(self, number: int) -> Path:
        return self.study_directory / f"trial-{number:05d}"

    def trial_files(self, number: int) -> Path:
        return self.trial(number) / "files"

    def attempt(self, number: int, attempt: int) -> Path:
        return self.trial(number) / f"attempt-{attempt:02d}"

    def log(self, number: int, attempt: int) -> Path:
        return self.attempt(number, attempt) / "log.txt"

    def checkpoints(self, number: int, attempt: int) -> Path:
        return self.attempt(number, attempt) / "checkpoints"
