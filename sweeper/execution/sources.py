"""How a study's definition reaches the processes that run it.

A study in a file or package is imported there. One that was defined in a script's ``__main__`` or a
notebook travels by cloudpickle through the pipe to processes that this one started; nothing is
unpickled that came from a disk or a database.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.definition import StudyDefinition
from sweeper.errors import DefinitionError, StudyFileError
from sweeper.execution.channel import StudySource
from sweeper.loading import (
    MADE_UP,
    load_definition,
    loaded_from,
    split_target,
    unpickling_error,
)

__all__ = [
    "check_unchanged",
    "describe_source",
    "load_source",
    "recall_source",
    "source_of",
    "target_source",
]

_GONE = "which is gone; give its new place: sweeper run FILE[:NAME]"


def target_source(target: str, study: str | None = None) -> StudySource:
    """The source for ``FILE[:NAME]`` or ``package.module[:NAME]``.

    Raises:
        StudyFileError: It is a file's path, and there is none.
    """
    location = Path(split_target(target)[0])
    if location.suffix == ".py" and not location.is_file():
        what = "is a directory" if location.is_dir() else "does not exist"
        msg = f"{location} {what}; give the Python file that defines the study"
        raise StudyFileError(msg)
    return StudySource(how="target", target=target, study=study)


def source_of(definition: StudyDefinition) -> StudySource:
    """The source for a study object of this process, by value.

    Raises:
        DefinitionError: Something that its functions use cannot be sent to another process.
    """
    import cloudpickle

    unfindable = [m for n, m in sys.modules.items() if n.startswith(MADE_UP)]
    try:
        for module in unfindable:
            cloudpickle.register_pickle_by_value(module)
        pickled = cloudpickle.dumps(definition)
    except Exception as error:
        msg = (
            f"study {definition.name!r} cannot be sent to the processes that run its trials: "
            f"{error}; open files, locks and the like inside the functions, or run the study from "
            "a file with `sweeper run FILE`"
        )
        raise DefinitionError(msg) from error
    finally:
        for module in unfindable:
            cloudpickle.unregister_pickle_by_value(module)
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return StudySource(
        how="pickled",
        target=loaded_from(definition) or main,
        study=definition.name,
        pickled=base64.b64encode(pickled).decode(),
        path=tuple(sys.path),
    )


def load_source(source: StudySource) -> StudyDefinition:
    """The definition that ``source`` leads to.

    Raises:
        StudyFileError, StudyImportError: See `load_definition`.
    """
    for entry in source.path:
        if entry not in sys.path:
            sys.path.append(entry)
    if source.how == "target":
        return load_definition(source.target, study_name=source.study)
    try:
        definition = pickle.loads(base64.b64decode(source.pickled or ""))  # noqa: S301 - our own pipe
    except Exception as error:
        raise unpickling_error(source.study or "", error) from error
    if not isinstance(definition, StudyDefinition):
        msg = f"expected a study through the pipe, got a {type(definition).__name__}"
        raise StudyFileError(msg)
    return definition


def describe_source(source: StudySource) -> dict[str, Any]:
    """What the database keeps of a source, so that a later ``resume`` finds the code."""
    location, name = split_target(source.target)
    if location and Path(location).is_file():
        location = str(Path(location).resolve())
    return {
        "how": source.how,
        "location": location,
        "name": name,
        "directory": str(Path.cwd()),
        "sha256": _digest(location),
    }


def check_unchanged(study: str, described: Mapping[str, Any] | None, source: StudySource) -> None:
    """Check that a study's file on this machine is, byte for byte, the one that it is run from.

    Raises:
        StudyFileError: It is another one.
    """
    expected = (described or {}).get("sha256")
    location, _ = split_target(source.target)
    seen = _digest(location)
    if expected is None or seen == expected:
        return
    msg = (
        f"{location} on this machine is not the file that study {study!r} is run from (its SHA-256 "
        f"begins with {(seen or 'nothing')[:12]}, and {expected[:12]} was expected); copy that one "
        "here, or call `sweeper run FILE` first if this is the newer one"
    )
    raise StudyFileError(msg)


def recall_source(
    study: str, described: Mapping[str, Any] | None, gone: str = _GONE
) -> StudySource:
    """The source of a stored study.

    Args:
        study: The study's name.
        described: What the database keeps of its source.
        gone: What to say of a file that is not there.

    Raises:
        StudyFileError: The study was defined in a notebook, or its file is gone.
    """
    described = described or {}
    location = str(described.get("location") or "")
    if not location:
        msg = (
            f"study {study!r} was defined in a notebook or an interactive session, so its code is "
            "only there; run the cell that defines it, and call study.resume()"
        )
        raise StudyFileError(msg)
    if location.endswith(".py") and not Path(location).exists():
        msg = f"study {study!r} was defined in {location}, {gone}"
        raise StudyFileError(msg)
    name = described.get("name")
    return StudySource(
        how="target",
        target=f"{location}:{name}" if name else location,
        study=study,
        path=(str(described["directory"]),) if described.get("directory") else (),
    )


def _digest(location: str) -> str | None:
    """SHA-256 of the file at ``location``; None where it is a module's name."""
    if not location or not Path(location).is_file():
        return None
    return hashlib.sha256(Path(location).read_bytes()).hexdigest()
