"""Loading of a `StudyDefinition` from ``FILE[:NAME]`` or ``package.module[:NAME]``.

A file is imported as a module, as ``python FILE`` would see it but under its own name, so the block below
``if __name__ == "__main__"`` does not run. A file that calls ``study.run()`` at its top level is executed
up to that call: the call would start a sweep in every process that imports the file.

The user's modules are always compiled from their source, without Python's cache: the cache does not
notice a file of equal length that is written within the same second, so an edited study could run
with its old code.
"""

import ast
import difflib
import importlib
import importlib.util
import re
import sys
import traceback
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

from sweeper.definition.definition import StudyDefinition
from sweeper.errors import (
    DefinitionError,
    StudyFileError,
    StudyImportError,
    SweeperError,
    UsageError,
)
from sweeper.inspection.sources import is_users_source
from sweeper.support.installation import missing_package
from sweeper.support.shown import shown_error

MADE_UP = "sweeper_study_"
"""Prefix of the name of a module that no import statement would find."""

_loading_depth = 0
_read_up_to: dict[str, str] = {}
"""Line at which the import ended, by the names of modules that run a study at import."""
_targets: weakref.WeakKeyDictionary[StudyDefinition, str] = weakref.WeakKeyDictionary()


class _ReadFarEnough(BaseException):
    """Exception that ends the import of a module which runs a study."""


def is_loading() -> bool:
    """Return whether a study's module is being imported by sweeper right now."""
    return _loading_depth > 0


def end_reading() -> None:
    """End the import of the module that runs a study, if sweeper is importing one right now."""
    if is_loading():
        raise _ReadFarEnough


def split_target(target: str) -> tuple[str, str | None]:
    """Split ``FILE[:NAME]`` into its two parts; the colon of a Windows drive is not a separator."""
    head, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier() or len(head) <= 1:
        return target, None
    return head, name


def split_data_target(target: str) -> tuple[str, str]:
    """Split ``--data FILE:NAME`` into the file or module and the name, without importing it."""
    location, name = split_target(target)
    if name is None or not location:
        raise UsageError(
            f"--data {target!r} names no function; expected FILE:NAME, where NAME is a function "
            "`trial -> Data`, or a Data, in that file"
        )
    path = Path(location)
    problem = None
    if path.suffix == ".py" and not path.is_file():
        problem = "is a directory" if path.is_dir() else "does not exist"
    elif path.suffix != ".py" and (path.exists() or len(path.parts) > 1):
        problem = "is not a Python file"
    if problem is not None:
        raise UsageError(f"{location} {problem}; expected --data FILE:NAME with a Python file")
    return location, name


def loaded_from(definition: StudyDefinition) -> str | None:
    """Return the target from which ``definition`` was loaded; None if this process defined it."""
    return _targets.get(definition)


def load_definition(target: str, *, study_name: str | None = None) -> StudyDefinition:
    """Import what ``target`` names and return the study in it, whose name is ``study_name`` if given.

    Raises:
        StudyFileError: No such file or module, no study in it, or several and no NAME.
        StudyImportError: The module raised; its ``traceback`` starts in the user's file.
    """
    definition = _find(target, study_name)
    _targets[definition] = target
    return definition


def no_such_file(path: Path) -> StudyFileError:
    """Return the error for a missing study file; it names a similar file if there is one."""
    if path.is_dir():
        problem = "is a directory"
    elif path.exists():
        problem = "is a pipe or a device, which a trial's process cannot read again"
    else:
        problem = "does not exist"
    candidates = (str(file) for file in path.parent.glob("*.py"))
    near = [] if path.exists() else difflib.get_close_matches(str(path), candidates, n=1)
    hint = f"did you mean {near[0]}?" if near else "give the Python file that defines the study"
    return StudyFileError(f"{path} {problem}; {hint}")


def load_named(target: str) -> object:
    """Import what ``FILE:NAME`` or ``package.module:NAME`` names, and return what has that name."""
    location, name = split_target(target)
    module = _import(location)
    value = None if name is None else getattr(module, name, None)
    if value is None:
        raise StudyFileError(
            f"{location} has no name {name!r}; it has "
            f"{', '.join(n for n in vars(module) if not n.startswith('_')) or 'no names at all'}"
        )
    return value


def _find(target: str, study_name: str | None) -> StudyDefinition:
    location, name = split_target(target)
    module = _import(location)
    if name is not None:
        study = getattr(module, name, None)
        if not isinstance(study, StudyDefinition):
            description = "nothing" if study is None else f"a {type(study).__name__}"
            raise StudyFileError(
                f"{location} has {description} under the name {name!r}; expected a sweeper.Study; "
                f"{_studies_in(module)}"
            )
        if study_name not in (None, study.name):
            raise StudyFileError(
                f"{target} is now a study called {study.name!r}; expected {study_name!r}; "
                f"{_studies_in(module)}"
            )
        return study
    studies = {n: s for n, s in _studies(module).items() if study_name in (None, s.name)}
    if len({id(s) for s in studies.values()}) == 1:
        return next(iter(studies.values()))
    if studies:
        names = " or ".join(f"{location}:{n}" for n in studies)
        msg = f"{location} holds {len(studies)} studies; name one: {names}"
    elif study_name is not None:
        msg = f"{location} has no study called {study_name!r}; {_studies_in(module)}"
    else:
        msg = f"{location} holds no study; write `study = sweeper.Study(…)` at its top level"
    raise StudyFileError(msg)


def _studies(module: ModuleType) -> dict[str, StudyDefinition]:
    return {n: v for n, v in vars(module).items() if isinstance(v, StudyDefinition)}


def _studies_in(module: ModuleType) -> str:
    studies = _studies(module)
    ended = _read_up_to.get(module.__name__)
    if ended is not None:
        ended = (
            f", up to {ended}, which runs a study and ends the import; put that call under "
            '`if __name__ == "__main__":`'
        )
    if not studies:
        return (
            f"it holds no study{ended or ''}; one that a function of it makes is continued by the script "
            "itself, which calls study.resume() or study.run()"
        )
    listing = ", ".join(f"{n} ({s.name!r})" for n, s in studies.items())
    return f"it holds {listing}{ended or ''}"


def file_of(location: str) -> Path | None:
    """Return the file that ``location`` names; None for a module, which may be importable.

    Raises:
        StudyFileError: There is no such file, it is not Python, or there is no such module.
    """
    path = Path(location)
    package = location.isidentifier() and (path / "__init__.py").is_file()
    if path.suffix == ".py" or (path.exists() and not package):
        if not path.is_file():
            raise no_such_file(path)
        if path.resolve().suffix != ".py":
            raise StudyFileError(f"{path} is not a Python file (its name must end in .py)")
        return path
    if "/" in location or "\\" in location:
        raise StudyFileError(
            f"there is no file {location}; give the Python file that defines the study"
        )
    _search_first(Path.cwd())
    # The packages of a dotted name would be imported to look into them.
    if location.isidentifier() and location not in sys.modules and not find_spec(location):
        raise _no_such_module(location)
    return None


def search_also(path: Sequence[str]) -> None:
    """Have modules looked for in ``path`` as well, which is the ``sys.path`` of another process.

    What that one has before Python's own directories, such as a script's directory, comes before the libraries here,
    too: a module of the user's may have the name of a library's. The others come last: that process may have been on
    another machine, with other libraries.
    """
    own = (n for n, entry in enumerate(path) if re.fullmatch(r"python\d+\.zip", Path(entry).name))
    first = next(own, 0)
    sys.path[:] = dict.fromkeys((*path[:first], *sys.path, *path[first:]))


def _search_first(directory: Path) -> None:
    """Have modules looked for in ``directory`` first, as Python does for a script's.

    It may be among the others already: behind the libraries, one of which may have a module of the same name.
    """
    if sys.path[:1] != [str(directory)]:
        sys.path[:] = [str(directory), *(entry for entry in sys.path if entry != str(directory))]


def _no_such_module(location: str) -> StudyFileError:
    msg = (
        f"there is neither a file nor a module called {location!r}; give the Python "
        "file that defines the study, or FILE:NAME"
    )
    return StudyFileError(msg)


def parsed_file(path: Path) -> ast.Module:
    """Return the syntax tree of a study's file; raise the error of an import if it is not Python."""
    content = path.read_bytes()
    file = str(path.resolve())
    try:
        with warnings.catch_warnings():
            # The import warns, too.
            warnings.simplefilter("ignore")
            # The compiler refuses more than the parser does.
            compile(content, file, "exec", dont_inherit=True)
            return ast.parse(content, file)
    except Exception as error:
        raise _import_error(str(path), error) from error


def add_line(error: SweeperError, file: str) -> None:
    """Add to a definition's error the line of ``file`` that was being executed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    if isinstance(error, DefinitionError) and lines:
        error.args = (f"{error} ({file}, line {lines[-1]})", *error.args[1:])


def _import(location: str) -> ModuleType:
    path = file_of(location)
    if path is not None:
        return _import_file(path)
    with _marked_as_loading():
        try:
            return importlib.import_module(location)
        except SweeperError:
            raise
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is None or not f"{location}.".startswith(f"{missing}."):
                raise _import_error(location, error) from error
            raise _no_such_module(location) from None


def _import_file(path: Path) -> ModuleType:
    file = path.resolve()
    package = _package_of(file)
    name = f"{package}.{file.stem}" if package else _module_name(file)
    directory = file.parents[package.count(".") + 1] if package else file.parent
    _search_first(directory)
    imported = sys.modules.get(name)
    if imported is not None and getattr(imported, "__file__", None) == str(file):
        return imported
    loader = _AsItStands(name, str(file))
    spec = ModuleSpec(name, loader, origin=str(file))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    # Before the file runs, because pickle and dataclasses look the module up by its name.
    sys.modules[name] = module
    with _marked_as_loading():
        try:
            loader.exec_module(module)
        except SweeperError as error:
            del sys.modules[name]
            add_line(error, str(file))
            raise
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _import_error(str(path), error) from error
    return module


class _AsItStands(SourceFileLoader):
    """Loader that compiles a file's source without Python's cache."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        compiled: CodeType = self.source_to_code(self.get_data(path), path)
        return compiled

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module up to its first call that runs a study."""
        try:
            super().exec_module(module)
        except _ReadFarEnough as ended:
            file = self.get_filename(module.__name__)
            frames = traceback.extract_tb(ended.__traceback__)
            line = next((f.lineno for f in frames if f.filename == file), None)
            _read_up_to[module.__name__] = f"line {line} of {file}"


class _UsersModules(MetaPathFinder):
    """Finder like `PathFinder`, which loads the user's modules from their source."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            file = spec.loader.get_filename(fullname)
            if is_users_source(file):
                spec.loader = _AsItStands(fullname, file)
        return spec


def _find_users_modules() -> None:
    """Install the finder that loads the user's modules from their source."""
    if any(isinstance(finder, _UsersModules) for finder in sys.meta_path):
        return
    index = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(index, _UsersModules())


def _package_of(file: Path) -> str:
    """Return the name of the package in which a file stands that imports from it by dots; otherwise empty."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    names: list[str] = []
    directory = file.parent
    while (directory / "__init__.py").is_file():
        names.insert(0, directory.name)
        directory = directory.parent
    by_dots = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    return ".".join(names) if by_dots else ""


def _module_name(file: Path) -> str:
    """Return the file's name as a module's, unless another module of that name can be imported."""
    stem = file.stem
    if not stem.isidentifier():
        return f"{MADE_UP}{zlib.crc32(str(file).encode()):08x}"
    imported = sys.modules.get(stem)
    if imported is not None:
        return stem if getattr(imported, "__file__", None) == str(file) else f"{MADE_UP}{stem}"
    spec = find_spec(stem)
    if spec is None or spec.origin == str(file):
        return stem
    return f"{MADE_UP}{stem}"


def unpickling_error(study: str, error: Exception) -> StudyImportError:
    """Return the error for a study that was sent to this process and cannot be unpickled."""
    text = "".join(traceback.format_exception(error))
    msg = (
        f"study {study!r} was sent to another process, which cannot unpickle it "
        f"({shown_error(error)}); define it in its own file, and use `sweeper run FILE`"
    )
    return StudyImportError(msg, text)


def _import_error(location: str, error: BaseException) -> StudyImportError:
    """Return the error with the user's traceback, from the first frame in the user's file."""
    internal_files = (__file__, importlib.__file__, importlib.util.__file__)
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in internal_files
        or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    if isinstance(error, SyntaxError):
        # Its own text repeats the place.
        failure = f"raised {type(error).__name__}: {error.msg}"
    elif isinstance(error, SystemExit):
        failure = f"called sys.exit({error.code!r})"
    else:
        failure = f"raised {shown_error(error)}"
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}, line {error.lineno})"
    elif trace is not None:
        last = traceback.extract_tb(trace)[-1]
        where = f" ({last.filename}, line {last.lineno})"
    lacks = missing_package(error)
    advice = f"{lacks}: install it" if lacks else "correct it"
    advice += ", and type the command again"
    return StudyImportError(f"importing {location} {failure}{where}; {advice}", text)


@contextmanager
def _marked_as_loading() -> Iterator[None]:
    global _loading_depth  # noqa: PLW0603 - one process imports one study at a time
    _loading_depth += 1
    _find_users_modules()
    try:
        yield
    finally:
        _loading_depth -= 1
