"""Names that functions use, and attributes that methods assign, read from bytecode, and the parts of callables."""

import contextlib
import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from sweeper.inspection.sorts import is_library_class, own_dict
from sweeper.inspection.sources import all_codes, is_users


def parts_of(value: Any, where: str, *, of_users_class: bool) -> Iterator[tuple[str, object]]:
    """Yield the functions that run when ``value``, at ``where``, is called, and what it holds, with their names."""
    attributes = own_dict(value) or {}
    if isinstance(value, types.MethodType):
        yield where, value.__func__
        yield f"the object that {where} is bound to", value.__self__
    elif isinstance(value, functools.partial):
        yield where, value.func
        for key, argument in (*enumerate(value.args, 1), *value.keywords.items()):
            yield f"argument {key!r} of the partial {where}", argument
    elif isinstance(value, staticmethod | classmethod | property | functools.cached_property):
        names = ("__func__", "fget", "fset", "fdel", "func")
        functions = (getattr(value, name, None) for name in names)
        yield from ((where, function) for function in functions if function is not None)
    elif "__wrapped__" in attributes:
        yield where, attributes["__wrapped__"]
    elif isinstance(value, dict):
        yield from ((f"{where}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{where}[{key}]", item) for key, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((where, item) for item in value if callable(item))
    if of_users_class:
        yield where, type(value)
        yield from ((f"{where}.{name}", item) for name, item in attributes.items())


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the variables of a function's closure, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # A variable that is not assigned yet has an empty cell.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def named_defaults(function: types.FunctionType) -> dict[str, Any]:
    code = function.__code__
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    named = zip(arguments[len(arguments) - len(defaults) :], defaults, strict=False)
    return {**dict(named), **(function.__kwdefaults__ or {})}


def functions_of(member: object) -> Iterator[types.FunctionType]:
    """Yield the functions of a class's member: a method, or those of a property."""
    for name in ("", "fget", "fset", "fdel", "func"):
        part = getattr(member, name, None) if name else member
        part = getattr(part, "__func__", part)
        part = getattr(part, "__wrapped__", part) if not isinstance(part, type) else part
        if type(part) is types.FunctionType:
            yield part


_NO_OPERATION = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL"})


def assigned_by(cls: type, *, library: bool) -> frozenset[str]:
    """Return the attributes that methods of ``cls`` and its bases, a library's or the user's, assign to ``self``."""
    bases = [base for base in cls.__mro__ if is_library_class(base) is library]
    members = (member for base in bases for member in vars(base).values())
    functions = (function for member in members for function in functions_of(member))
    return frozenset().union(*(_assigned_in(function.__code__) for function in functions))


@functools.cache
def _assigned_in(code: types.CodeType) -> frozenset[str]:
    # Opcodes are at even offsets. To disassemble methods that assign nothing would take long.
    if dis.opmap["STORE_ATTR"] not in code.co_code[::2]:
        return frozenset()
    return frozenset(_assigned_to_first_argument(code))


def _assigned_to_first_argument(code: types.CodeType) -> Iterator[str]:
    """Yield the attributes of the first argument that ``code`` assigns."""
    first = code.co_varnames[0] if code.co_argcount else ""
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in _NO_OPERATION:
            continue
        # `self.count += 1` copies `self`, and swaps it with the sum before it is stored.
        if (
            instruction.opname == "STORE_ATTR"
            and previous is not None
            and (_loads(previous, first) or previous.opname == "SWAP")
        ):
            yield str(instruction.argval)
        previous = instruction


def _loads(instruction: dis.Instruction, variable: str) -> bool:
    loaded = instruction.argval
    names = loaded if isinstance(loaded, tuple) else (loaded,)
    return instruction.opname.startswith("LOAD_FAST") and names[-1:] == (variable,)


def globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the module variables that ``function`` and those inside it load, by name."""
    namespace = function.__globals__
    for code in all_codes(function.__code__):
        candidates = [name for name in code.co_names if name in namespace]
        if not candidates:
            continue
        loaded = _arguments(code, "LOAD_GLOBAL", "LOAD_NAME")
        for name in candidates:
            if name in loaded:
                yield name, namespace[name]


def stored_globals(function: types.FunctionType) -> frozenset[str]:
    """Return the module variables that ``function`` and those inside it assign."""
    return _all_arguments(function, "STORE_GLOBAL", "DELETE_GLOBAL")


def imported_modules(function: types.FunctionType) -> frozenset[str]:
    """Return the names of the modules that ``function`` and those inside it import when they run."""
    return _all_arguments(function, "IMPORT_NAME")


def _all_arguments(function: types.FunctionType, *operations: str) -> frozenset[str]:
    return frozenset().union(*(_arguments(c, *operations) for c in all_codes(function.__code__)))


@functools.cache
def _arguments(code: types.CodeType, *operations: str) -> frozenset[str]:
    """Return the arguments of the instructions with these ``operations`` in ``code``."""
    return frozenset(
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname in operations
    )


def names_in(function: types.FunctionType) -> frozenset[str]:
    """Return the names of variables and attributes that ``function`` and those inside it use."""
    return frozenset(name for code in all_codes(function.__code__) for name in code.co_names)


def strings_in(functions: Iterable[object]) -> frozenset[str]:
    """Return the texts in the code of functions, and of the user's functions that they name."""
    texts: set[str] = set()
    visited: set[types.FunctionType] = set()
    ahead = [function for member in functions for function in functions_of(member)]
    while ahead:
        function = ahead.pop()
        if function in visited or not is_users(function.__code__.co_filename):
            continue
        visited.add(function)
        for code in all_codes(function.__code__):
            texts.update(text for text in code.co_consts if isinstance(text, str))
        for _, value in (*globals_of(function), *closure_of(function)):
            if type(value) is types.FunctionType:
                ahead.append(value)
    return frozenset(texts)
