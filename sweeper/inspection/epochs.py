"""Uses of the number of epochs in a study's own code, which an extension would change.

An extended trial equals one that was trained for as many epochs from its start, unless its code uses the
number of epochs: a learning rate that decays over all steps, a callback that reads ``params["epochs"]``.
This module reads the source that the factories reach, and runs no code. It finds numbers of epochs or
steps that are written with such a name, but not numbers that are computed from other values.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping

from sweeper.inspection.fingerprint import reached_parts_and_files
from sweeper.inspection.sources import Source, source_of
from sweeper.records.lengths import LengthKind, LengthRead

_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}
_LARGEST = 1 << 40
_SCHEDULES = ("Decay", "DecayRestarts", "Schedule")

_Found = tuple[LengthKind, int, ast.AST]
"""Kind of an expression, its number, and the expression to show."""


def read_lengths(roots: Mapping[str, object]) -> tuple[LengthRead, ...]:
    """Return the possible uses of the number of epochs in all code that the factories reach."""
    parts, files = reached_parts_and_files(roots)
    sources = {s.shown: _Lines(s) for s in map(source_of, sorted(files)) if s is not None}
    found: dict[LengthRead, None] = {}
    for name, part in parts.items():
        source = sources.get(part.file)
        if source is None or not part.first:
            if "epochs" in name:
                found[LengthRead(name, "epochs", "reads")] = None
            continue
        where = f"{name} ({source.shown}, line "
        for line, kind, number, shown in source.within(part.first, part.last):
            found[LengthRead(f"{where}{line})", shown, kind, number)] = None
    return tuple(found)


class _Lines:
    """Uses of the number of epochs in one source, by line."""

    def __init__(self, source: Source) -> None:
        self.shown = source.shown
        self._found: list[tuple[int, LengthKind, int, str]] = []
        constants = _constants(source.tree)
        for node in ast.walk(source.tree):
            for kind, number, shown in _found_at(node, constants):
                self._found.append((getattr(node, "lineno", 0), kind, number, ast.unparse(shown)))

    def within(self, first: int, last: int) -> Iterator[tuple[int, LengthKind, int, str]]:
        """Yield the line, kind, number and text of each use from line ``first`` to ``last``."""
        return (found for found in self._found if first <= found[0] <= last)


def _found_at(node: ast.AST, constants: Mapping[str, int]) -> Iterator[_Found]:
    if _asks(node):
        yield "reads", 0, node
        return
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if "epoch" in name.lower() and name in constants:
            yield "epochs", constants[name], node
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            yield from _factors(node, left, right, constants)
        case ast.Call(func=function, args=given, keywords=named):
            called = str(getattr(function, "attr", None) or getattr(function, "id", ""))
            if called.endswith("Study"):
                return
            if called.endswith(_SCHEDULES):
                yield from _numbers("steps", given, constants)
            for keyword in named:
                yield from _keyword(keyword, constants)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_of_steps(name):
            yield from _numbers("steps", [value], constants)
        case _:
            return


def _asks(node: ast.AST) -> bool:
    """Return whether ``node`` reads the number of epochs: ``self.params["epochs"]``, ``study.epochs``."""
    match node:
        case ast.Attribute(attr="epochs", ctx=ast.Load()):
            return True
        case ast.Subscript(slice=ast.Constant(value="epochs"), ctx=ast.Load()):
            return True
        case ast.Call(
            func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value="epochs"), *_]
        ):
            return True
        case _:
            return False


def _factors(
    node: ast.BinOp, left: ast.expr, right: ast.expr, constants: Mapping[str, int]
) -> Iterator[_Found]:
    """Yield a product like ``steps * 5``: a whole number times steps, batches or a length."""
    for one, other in ((left, right), (right, left)):
        number = _value(one, constants)
        said = ast.unparse(other).lower()
        if number is not None and any(word in said for word in ("step", "batch", "len(")):
            yield "epochs", number, node


def _keyword(keyword: ast.keyword, constants: Mapping[str, int]) -> Iterator[_Found]:
    name = (keyword.arg or "").lower()
    if "epochs" in name:
        yield from _numbers("epochs", [keyword], constants)
    elif _is_of_steps(name):
        yield from _numbers("steps", [keyword], constants)


def _numbers(
    kind: LengthKind, nodes: list[ast.expr] | list[ast.keyword], constants: Mapping[str, int]
) -> Iterator[_Found]:
    for node in nodes:
        number = _value(node.value if isinstance(node, ast.keyword) else node, constants)
        if number is not None:
            yield kind, number, node


def _is_of_steps(name: str) -> bool:
    return "step" in name.lower() and "per_epoch" not in name.lower()


def _constants(tree: ast.Module) -> dict[str, int]:
    """Return the module variables that are assigned whole numbers."""
    found: dict[str, int] = {}
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                number = _value(value, found)
                if number is not None:
                    found[name] = number
            case _:
                continue
    return found


def _value(node: ast.expr, constants: Mapping[str, int]) -> int | None:
    """Return the value of an expression of whole numbers and constants, or None."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return constants.get(name)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            one, other = _value(left, constants), _value(right, constants)
            if one is None or other is None or max(abs(one), abs(other)) > _LARGEST:
                return None
            if isinstance(op, ast.FloorDiv) and other == 0:
                return None
            return _OPERATORS[type(op)](one, other)
        case _:
            return None
