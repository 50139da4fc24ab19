"""State that a process has set beside a study that it defines: settings of libraries, variables of the user's modules.

A study that was defined in a script or a notebook is pickled, with the script's own variables. The user's modules are
imported anew by the processes of the trials, and with them Keras with its defaults: a script that calls
``keras.config.set_floatx("float64")`` or sets ``options.UNITS = 64`` before it runs its study would train something
else than it says. So both travel with the study, as plain data.
"""

import ast
import base64
import enum
import functools
import importlib.abc
import importlib.machinery
import operator
import pickle
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from sweeper.definition.loading import MADE_UP
from sweeper.inspection.sources import is_users_source, source_of
from sweeper.records.code import digest_of

_MOST_BYTES = 1 << 20
"""Maximum size of a variable that travels; of a larger one only a difference is reported."""


class _Variable(NamedTuple):
    owner: Any
    value: Any
    text: str
    """Identifies the value in every process."""


class ProcessState(NamedTuple):
    """Arguments of the program, settings of libraries and pickled objects of Keras by their names, and variables.

    A variable's key is its module, the names of the class that has it, and its own; its value is a text that
    identifies it, and the pickled value, or None if that is too large.
    """

    arguments: list[str]
    settings: dict[str, Any]
    custom_objects: dict[str, bytes]
    variables: dict[tuple[str, str], tuple[str, bytes | None]]

    @classmethod
    def take(cls) -> str:
        """Return the state of this process as a text."""
        settings: dict[str, Any] = {}
        custom_objects: dict[str, bytes] = {}
        if "keras" in sys.modules:
            import keras

            from sweeper.train.settings import SETTINGS

            settings = {name: setting.read() for name, setting in SETTINGS.items()}
            for name, value in keras.saving.get_custom_objects().items():
                pickled = _pickled(value)
                if pickled is not None:
                    custom_objects[name] = pickled
        variables = {
            key: (variable.text, _pickled(variable.value)) for key, variable in _variables().items()
        }
        state = tuple(cls(sys.argv, settings, custom_objects, variables))
        return base64.b64encode(pickle.dumps(state)).decode()

    @classmethod
    def read(cls, text: str) -> "ProcessState":
        """Return the state that another process has taken."""
        return cls(*pickle.loads(base64.b64decode(text)))  # noqa: S301 - our own pipe

    def apply_settings(self) -> None:
        """Set the arguments, and settings of libraries; before the user's modules are imported, which may read them."""
        sys.argv[:] = self.arguments
        if not self.settings:
            return
        import keras

        from sweeper.train.settings import SETTINGS

        for name, value in self.settings.items():
            if SETTINGS[name].read() != value:
                SETTINGS[name].change(value)
        for name, pickled in self.custom_objects.items():
            keras.saving.get_custom_objects().setdefault(name, pickle.loads(pickled))  # noqa: S301

    def apply_variables(self) -> None:
        """Give the variables of modules these values: now, or when a factory imports the module."""
        modules = {module for module, _ in self.variables}
        imported = modules & sys.modules.keys()
        self._apply_to(imported)
        sys.meta_path.insert(0, _ModulesImportedLater(modules - imported, self._apply_to))

    def _apply_to(self, modules: Collection[str]) -> None:
        present = _variables()
        for (module, path), (text, pickled) in self.variables.items():
            variable = present.get((module, path))
            if module not in modules or (variable is not None and variable.text == text):
                continue
            if pickled is None:
                sys.stderr.write(
                    f"sweeper: {module}.{path} has another value in the processes of the trials, which import the "
                    "module anew, than in the one that runs the study, and is too large to be sent to them\n"
                )
                continue
            owner_name, _, name = path.rpartition(".")
            owner = sys.modules[module]
            if owner_name:
                owner = operator.attrgetter(owner_name)(owner)
            _assign(owner, name, pickle.loads(pickled))  # noqa: S301


class _ModulesImportedLater(importlib.abc.MetaPathFinder):
    """Finder that calls ``apply`` with the name of each of these modules, once it has been imported."""

    def __init__(self, modules: Collection[str], apply: Callable[[Collection[str]], None]) -> None:
        self._modules = modules
        self._apply = apply

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._modules:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (f.find_spec(name, path, target) for f in finders)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_apply(module: types.ModuleType) -> None:
                execute(module)
                self._apply({name})

            spec.loader.exec_module = execute_and_apply  # type: ignore[method-assign]
        return spec


def _variables() -> dict[tuple[str, str], _Variable]:
    """Return the variables that hold data, of the user's modules and of the classes in them."""
    # It imports NumPy, which commands that only read need not.
    from sweeper.inspection.constants import ValueTexts

    texts = ValueTexts("")
    variables = {}
    for module_name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if (
            module_name == "__main__"
            or module_name.startswith(MADE_UP)
            or not is_users_source(file)
        ):
            continue
        contents = vars(module)
        classes = [
            value
            for value in contents.values()
            if isinstance(value, type) and value.__module__ == module_name
        ]
        # A flag says that something else was made, which does not travel: it is made again where it is used.
        incomplete: set[str] = set()
        for names in _assigned_together(file):
            if any(_text(texts, contents.get(name)) is None for name in names):
                incomplete.update(names)
        for owner in (module, *classes):
            prefix = f"{owner.__qualname__}." if isinstance(owner, type) else ""
            for name, value in list(vars(owner).items()):
                left_out = name.startswith("__") or prefix + name in incomplete
                text = None if left_out else _text(texts, value)
                if text is not None:
                    variables[module_name, prefix + name] = _Variable(owner, value, text)
    return variables


@functools.lru_cache(maxsize=256)
def _assigned_together(file: str) -> tuple[frozenset[str], ...]:
    """Return the variables that each function of a module assigns, by its ``global`` statements."""
    return tuple(
        frozenset(
            name
            for node in ast.walk(function)
            if isinstance(node, ast.Global)
            for name in node.names
        )
        for function in ast.walk(source_of(file).compared)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _text(texts: Any, value: Any) -> str | None:
    """Return a text that identifies a value in every process; None if it is more than data."""
    text: str | None = texts.of(value)
    if text is not None or not _is_record(value):
        return text
    attributes: str | None = texts.of(vars(value))
    return attributes and digest_of(type(value).__qualname__, attributes)


def _is_record(value: Any) -> bool:
    """Return whether a value is an object of a user's class that has attributes."""
    module = sys.modules.get(type(value).__module__)
    return is_users_source(getattr(module, "__file__", None) or "") and _has_attributes(value)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type | enum.Enum)


def _pickled(value: Any) -> bytes | None:
    """Return a value pickled; None if it cannot be, or is too large."""
    import cloudpickle

    if getattr(value, "nbytes", 0) > _MOST_BYTES:
        return None  # Not copied, only to be measured.
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception:
        return None
    return pickled if len(pickled) <= _MOST_BYTES else None


def _assign(owner: Any, name: str, value: Any) -> None:
    """Assign an attribute: the content of the present object if it can be, because other modules may refer to it."""
    current = vars(owner).get(name)
    if type(current) is not type(value):
        setattr(owner, name, value)
    elif isinstance(value, dict | set):
        current.clear()
        current.update(value)
    elif isinstance(value, list):
        current[:] = value
    elif _has_attributes(value):
        vars(current).clear()
        vars(current).update(vars(value))
    else:
        setattr(owner, name, value)
