"""Text of the user's code: its owner, its meaning, and where a function or class stands.

Two texts mean the same where their syntax trees are equal but for docstrings and positions. A text
that is not what runs (a file that was edited after it was imported) is no text of it: whether it
compiles to the very code is checked, and what runs counts.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.records.code import CodeFingerprint, digest_of

_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)
_PACKAGE = str(Path(__file__).resolve().parents[1])


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Return whether the user wrote ``file``: it is no library's, not Python's, and not of this package."""
    if not file or file.startswith("<"):
        return False
    resolved = str(Path(file).resolve())
    return not resolved.startswith((*_LIBRARIES, _PACKAGE)) and Path(resolved).is_file()


def outward(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """The frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line(lines: Iterable[tuple[str, int]]) -> str | None:
    """Return the first of ``lines``, files and numbers of lines, that is the user's, as ``file:line``."""
    return next((f"{Path(f).name}:{number}" for f, number in lines if is_users(f)), None)


_SHORT = 8
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, eq=False)
class Source:
    """One text that Python compiled: a file's, or a notebook's cell.

    Attributes:
        file: As code objects name it.
        text: What it says.
        tree: The parsed text.
    """

    file: str
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def is_file(self) -> bool:
        return Path(self.file).is_file()

    @property
    def shown(self) -> str:
        """For a person."""
        return Path(self.file).name if self.is_file else "a notebook's cell"

    def runs(self, code: types.CodeType) -> bool:
        """Return whether ``code`` is what this text compiles to."""
        # A notebook's cell is compiled under what an earlier one imported from __future__.
        return code in _codes(self.text, code.co_flags & _FUTURE)

    def function(self, code: types.CodeType) -> ast.AST | None:
        """Return the definition or lambda that ``code`` was compiled from; None if it is not in here."""
        if not self.runs(code):
            return None
        found = self._functions.get((code.co_firstlineno, code.co_name), [])
        if len(found) > 1:
            found = [node for node in found if _surrounds(node, code)] or found
            found = sorted(found, key=_extent)
        return found[0] if found else None

    def class_(self, qualname: str, methods: list[types.CodeType]) -> ast.ClassDef | None:
        """Return the class of that name, the last one that has the methods; None if it is not in here."""
        if not all(self.runs(code) for code in methods):
            return None
        lines = {code.co_firstlineno for code in methods}
        found = None
        for node in self._classes.get(qualname, ()):
            if lines <= {_first_line(each) for each in ast.walk(node)}:
                found = node
        return found

    @functools.cached_property
    def _functions(self) -> Mapping[tuple[int, str], list[ast.AST]]:
        """Return the definitions and lambdas by first line and name."""
        found: dict[tuple[int, str], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                name = getattr(node, "name", "<lambda>")
                found.setdefault((_first_line(node), name), []).append(node)
        return found

    @functools.cached_property
    def _classes(self) -> Mapping[str, list[ast.ClassDef]]:
        """Return the classes by qualified name."""
        found: dict[str, list[ast.ClassDef]] = {}
        for name, node in _qualified(self.tree, ""):
            if isinstance(node, ast.ClassDef):
                found.setdefault(name, []).append(node)
        return found


def is_users_source(file: str) -> bool:
    """Return whether code of ``file`` is the user's own: a file of theirs, or a notebook's cell."""
    if not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    if is_users(file):
        return True
    # No file, but a text that was registered for tracebacks, as notebooks do for their cells.
    entry = linecache.cache.get(file)
    return entry is not None and len(entry) > 1 and entry[1] is None


def source_of(file: str) -> Source | None:
    """Return the text of ``file`` as it is now; None where there is none, or it is no Python."""
    if is_users(file):
        linecache.checkcache(file)
    return _parsed(file, "".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=256)
def _parsed(file: str, text: str) -> Source | None:
    if not text:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    return Source(file, text, tree)


@functools.lru_cache(maxsize=256)
def _codes(text: str, flags: int) -> frozenset[types.CodeType]:
    """Return every code object that compiling ``text`` gives."""
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        whole = compile(text, "", "exec", flags=flags, dont_inherit=True)
    except SyntaxError:
        return frozenset()
    codes = set()
    waiting = [whole]
    while waiting:
        code = waiting.pop()
        codes.add(code)
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(codes)


def changed_definitions(file: Path, code: CodeFingerprint) -> tuple[str, ...]:
    """Return the functions and classes of a file that differ from ``code``, with their lines.

    The file is read, and nothing in it is run.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return (f"{file.name} is not readable as Python",)
    found = dict(_qualified(tree, ""))
    changed = []
    for name, part in code.parts.items():
        node = found.get(name)
        if part.file != file.name or not part.statements:
            continue
        defined = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if defined and digest_of(meaning(node)) != part.digest:
            changed.append(f"{name} has changed (line {getattr(node, 'lineno', 0)})")
    return tuple(changed)


def meaning(node: object) -> str:
    """Return a text that two syntax trees share if they are equal but for docstrings and positions.

    It is the same in every version of Python whose trees have the same nodes.
    """
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "type_comment", "kind") or value is None or value == []:
                continue
            inner = value
            if name == "body" and isinstance(value, list):
                inner = _without_docstring(node, value)
            fields.append(f"{name}={meaning(inner)}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list | tuple):
        return f"[{','.join(map(meaning, node))}]"
    return f"{type(node).__name__}:{node!r}"


def statements_of(node: ast.AST) -> tuple[tuple[int, str], ...]:
    """Return the line and a digest of each statement in ``node``, itself included, without its blocks."""
    found = []
    for each in _in_order(node):
        if isinstance(each, ast.stmt | ast.Lambda | ast.excepthandler | ast.match_case):
            head = meaning(_Headed(each)) if _has_blocks(each) else meaning(each)
            found.append((getattr(each, "lineno", 0), digest_of(head)[:_SHORT]))
    return tuple(found)


def meaning_of_code(code: types.CodeType) -> str:
    """Return the same for code whose text is not known: its instructions and what they refer to."""
    constants = [
        meaning_of_code(value) if isinstance(value, types.CodeType) else meaning(_ordered(value))
        for value in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return f"{code.co_name}{code.co_code.hex()}{names}{code.co_flags}[{','.join(constants)}]"


def _ordered(value: object) -> object:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


class _Headed(ast.AST):
    """A compound statement without its blocks."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        kept = [(n, v) for n, v in ast.iter_fields(node) if n not in _BODIES]
        self._fields = tuple(name for name, _ in kept)  # type: ignore[misc]
        for name, value in kept:
            setattr(self, name, value)


def _has_blocks(node: ast.AST) -> bool:
    return isinstance(getattr(node, "body", None), list)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        if name == "body":
            parts = _without_docstring(node, parts)
        for part in parts:
            if isinstance(part, ast.AST):
                yield from _in_order(part)


def _without_docstring(node: ast.AST, body: list[Any]) -> list[Any]:
    if (
        isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        # As Python reads it: a body of a docstring alone does what `pass` does.
        return body[1:] or [ast.Pass(lineno=body[0].lineno)]
    return body


def _first_line(node: Any) -> int:
    lines = [int(each.lineno) for each in getattr(node, "decorator_list", ())]
    return min([int(getattr(node, "lineno", 0)), *lines])


def _surrounds(node: ast.AST, code: types.CodeType) -> bool:
    """Return whether every instruction of ``code`` stands within ``node``."""
    begin = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    end = (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
    for line, end_line, column, end_column in code.co_positions():
        # What makes a frame or a cell stands at no column.
        if line is None or not end_column or column is None or end_line is None:
            continue
        if (line, column) < begin or (end_line, end_column) > end:
            return False
    return True


def _extent(node: ast.AST) -> tuple[int, int]:
    lines = getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0)
    return lines, getattr(node, "end_col_offset", 0) - getattr(node, "col_offset", 0)


def _qualified(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            name = f"{prefix}{getattr(child, 'name', '<lambda>')}"
            yield name, child
            inner = "." if isinstance(child, ast.ClassDef) else ".<locals>."
            yield from _qualified(child, name + inner)
        else:
            yield from _qualified(child, prefix)
