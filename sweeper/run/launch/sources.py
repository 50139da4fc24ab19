"""Transfer of a study's definition to the processes that run it.

Those processes import a study from its file or package. A study that was defined in ``__main__`` or in
a notebook is pickled by cloudpickle and sent through a pipe to processes that this process started.
Nothing is unpickled that was read from a disk or a database.
"""

import base64
import hashlib
import io
import linecache
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sweeper.declarations.repeating import CONFIRMING
from sweeper.definition import loading
from sweeper.definition.definition import StudyDefinition
from sweeper.errors import DefinitionChangedError, DefinitionError, StudyFileError
from sweeper.inspection.sources import find_module_file, meaning_of_text, texts_of_cells
from sweeper.records.code import CodeFingerprint
from sweeper.run.launch.process_state import ProcessState
from sweeper.run.protocol.messages import StudySource

_GONE = "which is missing; give its new path: sweeper run FILE[:NAME]"


def target_source(target: str, study: str | None = None) -> StudySource:
    """Return the source for ``FILE[:NAME]`` or ``package.module[:NAME]``."""
    location = Path(loading.split_target(target)[0])
    if location.suffix == ".py" and not location.is_file():
        raise loading.no_such_file(location)
    return StudySource(how="target", target=target, study=study)


def source_of(definition: StudyDefinition) -> StudySource:
    """Return the source of a study object: pickled by value if possible, otherwise its file.

    A `tf.data` dataset, for example, cannot be pickled, but importing the file creates it again.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if not Path(main).is_file():
        # The name is "<stdin>" if the script was piped into Python.
        main = ""
    try:
        pickled = pickle_by_value(definition)
    except Exception as error:
        # A script's arguments may change what it defines, and other processes do not have them.
        script = main if main.endswith(".py") and not sys.argv[1:] else None
        target = loading.loaded_from(definition) or script
        if target is not None:
            return StudySource(
                how="target",
                target=target,
                study=definition.name,
                path=tuple(sys.path),
                code=definition.code().to_json(),
            )
        raise DefinitionError(
            f"study {definition.name!r} cannot be sent to the processes that run its trials: "
            f"{error}; open files and make locks inside the functions, or run the study from a "
            "file with `sweeper run FILE`"
        ) from error
    return StudySource(
        how="pickled",
        target=loading.loaded_from(definition) or main,
        study=definition.name,
        pickled=pickled,
        state=ProcessState.take(),
        path=tuple(sys.path),
        texts=texts_of_cells(),
        defined_code=definition.code().to_json(),
    )


def pickle_by_value(value: object) -> str:
    """Return ``value`` pickled by cloudpickle, in base64, with the code of modules that cannot be imported.

    Code objects keep their ``co_filename``, by which their source text is found. cloudpickle 3.1.3 and
    later replaces it by ``<dynamic-code>``, so that a notebook's study would seem to be edited.
    """
    import cloudpickle

    inherited = cloudpickle.Pickler.dispatch_table

    def with_its_file(code: types.CodeType) -> tuple[Any, ...]:
        make, arguments = inherited[types.CodeType](code)
        return code_of_file, (make, arguments, code.co_filename)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: with_its_file}, inherited)

    buffer = io.BytesIO()
    unfindable = [m for n, m in sys.modules.items() if n.startswith(loading.MADE_UP)]
    try:
        for module in unfindable:
            cloudpickle.register_pickle_by_value(module)
        Pickler(buffer).dump(value)
        return base64.b64encode(buffer.getvalue()).decode()
    finally:
        for module in unfindable:
            cloudpickle.unregister_pickle_by_value(module)


def code_of_file(
    make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str
) -> types.CodeType:
    """Return the code from a result of `pickle_by_value`."""
    return make(*arguments).replace(co_filename=file)


def load_source(source: StudySource) -> StudyDefinition:
    """Return the definition of ``source``; raise `DefinitionChangedError` if its code has changed since."""
    for file, text in source.texts.items():
        # Notebooks register their cells in the same way.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    definition = _load(source)
    if source.code is not None:
        changes = definition.code().changes_since(CodeFingerprint.from_json(source.code))
        if changes:
            raise DefinitionChangedError(
                f"the code of study {definition.name!r} was edited while it runs: "
                f"{'; '.join(changes)}. Every trial so far ran under the old code, and nothing is "
                f"lost: restore the code and resume, or type `sweeper run {source.target}`, which "
                "explains the change"
            )
    return definition


def import_study(source: StudySource) -> StudyDefinition:
    """Load the source in a trial's process, with generators seeded for the code at its top level."""
    from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything

    seed_everything(IMPORT_SEED)
    return load_source(source)


def _load(source: StudySource) -> StudyDefinition:
    # The current directory comes last, so that other files in it do not shadow libraries.
    loading.search_also((*source.path, str(Path.cwd())))
    if source.how == "target":
        return loading.load_definition(source.target, study_name=source.study)
    state = None if source.state is None else ProcessState.read(source.state)
    try:
        if state is not None:
            state.apply_settings()
        definition = pickle.loads(base64.b64decode(source.pickled or ""))  # noqa: S301 - our own pipe
        if state is not None:
            state.apply_variables()
    except Exception as error:
        raise loading.unpickling_error(source.study or "", error) from error
    if not isinstance(definition, StudyDefinition):
        raise StudyFileError(
            f"expected a study through the pipe, got a {type(definition).__name__}"
        )
    return definition


def describe_source(source: StudySource) -> dict[str, Any]:
    """Return the stored form of a source, by which a later ``resume`` finds the code."""
    location, name = loading.split_target(source.target)
    if location and Path(location).is_file():
        location = str(Path(location).resolve())
    return {
        "how": source.how,
        "location": location,
        "name": name,
        "directory": str(Path.cwd()),
        "meaning": _meaning(location),
    }


def check_unchanged(
    study: str,
    described: Mapping[str, Any] | None,
    source: StudySource,
) -> None:
    """Check that a study's file on this machine equals the one from which the study was run.

    Comments, docstrings and formatting are ignored. The check is also a safeguard: other users may write to
    the database, so only a file is run whose content was run before or which the user names now.
    ``described`` is the stored form of the source.
    """
    expected = str((described or {}).get("meaning") or "")
    location, _ = loading.split_target(source.target)
    if expected and _meaning(location, source.path) == expected:
        return
    raise StudyFileError(
        f"{location} on this machine differs from the file of study {study!r}: it has changed since, or is "
        "another file. Restore it, or copy the study's file to this machine; if it is newer, type "
        f"`sweeper run {source.target}`, which compares the code that the study uses and says how to "
        "continue"
    )


def recall_source(
    study: str,
    described: Mapping[str, Any] | None,
    gone: str = _GONE,
) -> StudySource:
    """Return the source of a stored study, after `check_unchanged`.

    ``described`` is its stored form, and ``gone`` the end of the message about a missing file.

    Raises:
        StudyFileError: The study was defined in a notebook or was renamed by ``--fresh``, or its file
            is missing or differs.
    """
    study = study.removesuffix(CONFIRMING)
    if "~" in study:
        raise StudyFileError(
            f"study {study!r} was renamed by `run --fresh`, so it can only be read and removed; "
            "run the new study of the original name"
        )
    described = described or {}
    location = str(described.get("location") or "")
    if not location:
        raise StudyFileError(
            f"study {study!r} was defined in a notebook, at a prompt or in a pipe, and its code is not "
            "stored: nothing that is read from a database or a disk is unpickled. Call study.verify(), "
            "study.resume() or results[N].load_model() in the session that defines it, where its cells have "
            "run; or save the same code as a file, for example study.py, and type `sweeper run study.py`, "
            "from which on every command finds it"
        )
    if location.endswith(".py") and not Path(location).exists():
        raise StudyFileError(f"study {study!r} was defined in {location}, {gone}")
    name = described.get("name")
    source = StudySource(
        how="target",
        target=f"{location}:{name}" if name else location,
        study=study,
        path=(str(described["directory"]),) if described.get("directory") else (),
    )
    check_unchanged(study, described, source)
    return source


def _meaning(location: str, path: Sequence[str] = ()) -> str | None:
    """Return the digest of the file's code without comments and formatting; None without a file."""
    file = _find_file(location, path)
    if file is None:
        return None
    content = Path(file).read_bytes()
    try:
        return meaning_of_text(content)
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(content).hexdigest()


def _find_file(location: str, path: Sequence[str]) -> str | None:
    """Return ``location`` if it is a file, or else the file of that module, found without importing."""
    if location and Path(location).is_file():
        return location
    return find_module_file(location, (str(Path.cwd()), *sys.path, *path))
