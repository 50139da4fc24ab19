"""Where a process finds the study that it runs, as it is sent through a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from sweeper.execution.protocol.sendable import sendable


@sendable
class StudySource:
    """Where a process finds the study's definition.

    Attributes:
        how: ``"target"``: import ``target``. ``"pickled"``: ``pickled`` is the definition itself,
            by cloudpickle and base64, made by the process that started this one and sent over a
            pipe; it is never stored.
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``; with ``"pickled"``, where the
            definition's code stands, if that is a file.
        study: The study's name, where the module holds several.
        path: ``sys.path`` of the process that defined it, with ``"pickled"``.
        texts: With ``"pickled"``, the notebook's cells that its functions stand in, by the files
            that their code names.
        defined_code: With ``"pickled"``, the code as `CodeFingerprint.to_json`, read by the process
            that defined it, whose modules are whole: by value a function brings only the variables
            that it names itself, and what these were made of is not to be seen.
        code: What the code must be, as the process that loads it reads it; None for whatever is
            there.
    """

    how: Literal["target", "pickled"]
    target: str
    study: str | None = None
    pickled: str | None = None
    path: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    defined_code: Mapping[str, Any] | None = None
    code: Mapping[str, Any] | None = None
