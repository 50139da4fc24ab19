"""Studies that a file declares, read from its text: nothing of the user's is run, nor TensorFlow imported.

A call counts only if importing the file is certain to make it: a statement at the top level that calls
the `Study` of a plain import whose name nothing else in the file binds. Its literal arguments are checked
by `Study` itself, in a call at the same position, so a mistake has the message that the import would
give. What is computed waits for the import.
"""

import ast
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.declarations.budgets import Halving, Hyperband
from sweeper.declarations.checkpointing import Every, Keep
from sweeper.declarations.retries import Retries
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.loading import add_line, file_of, parsed_file, split_target
from sweeper.errors import DefinitionError
from sweeper.inspection.sources import (
    bound_name,
    find_module_file,
    is_users_source,
    outside_functions,
)

_PLAIN: dict[str, Any] = {cls.__name__: cls for cls in (Every, Halving, Hyperband, Keep, Retries)}
"""Classes of plain values, which are made here if their arguments are literal."""

_CLASSES = {**_PLAIN, "Study": type("Study", (StudyDefinition,), {})}

_RUNNING = frozenset({"run", "resume", "extend", "confirm", "evaluate"})
"""Methods of a study that end the reading of its file."""

_REBINDING = frozenset({"*", "setattr", "exec", "globals", "vars", "locals"})
"""Names by which a file may bind others unseen."""

_MANY = 10**9
"""A number of epochs or trials beside which no other argument is refused."""


def check_target(target: str) -> None:
    """Raise the error of importing ``target``, as far as the text of its file shows one.

    Raises:
        StudyFileError: There is no such file or module.
        StudyImportError: The file is not Python.
        DefinitionError: A literal argument of a study is unknown or impossible.
    """
    path = file_of(split_target(target)[0])
    if path is not None:
        for study in DeclaringFile(path).studies():
            study.check()


@dataclass(frozen=True)
class DeclaredStudy:
    """A call of `Study` that importing ``file`` makes, and the variable that gets the study.

    ``members`` are names of the package's classes by the expressions that call them.
    """

    call: ast.Call
    variable: str | None
    file: str
    members: Mapping[str, str]

    @functools.cached_property
    def literals(self) -> dict[str | None, Any]:
        """The literal arguments."""
        keywords = self.call.keywords
        return {k.arg: ast.literal_eval(k.value) for k in keywords if _is_literal(k.value)}

    @property
    def is_literal(self) -> bool:
        """Return whether the text alone decides every argument; other values are those of the file's names."""
        return not self.call.args and all(map(self._is_decided, self.call.keywords))

    def check(self) -> None:
        """Make a study of the certain arguments, and of harmless ones in place of those that are computed.

        Raises:
            DefinitionError: An argument is unknown or impossible.
        """
        if any(isinstance(argument, ast.Starred) for argument in self.call.args):
            return
        parameters = inspect.signature(StudyDefinition).parameters
        known = {k.arg: k.value for k in self.call.keywords if k.arg is not None}
        computed = {
            name
            for name, value in known.items()
            # The file of a warm start may be written by the import itself.
            if name == "warm_start" or not self._is_certain(value)
        }
        if len(known) < len(self.call.keywords):  # `**more` may give any other argument
            computed |= parameters.keys() - known.keys()
        harmless = self._harmless(computed)
        positional: list[ast.expr] = [ast.Constant(None) for _ in self.call.args]
        call = ast.Call(ast.Name("Study", ast.Load()), positional, [])
        for name in (*known, *(harmless.keys() - known.keys())):
            if name not in computed:
                value = _Members(self.members).visit(known[name])
            elif name in parameters and name not in harmless:
                continue
            else:
                value = ast.Name(f"{name} computed", ast.Load())
            call.keywords.append(ast.keyword(name, value))
        module = ast.Module([ast.copy_location(ast.Expr(call), self.call)], [])
        ast.copy_location(call, self.call)
        values = {f"{name} computed": harmless.get(name) for name in computed}
        try:
            # S102: the call of a class of sweeper's with literals.
            exec(compile(ast.fix_missing_locations(module), self.file, "exec"), _CLASSES | values)  # noqa: S102
        except DefinitionError as error:
            add_line(error, self.file)
            raise
        except TypeError:
            # The import shows it with the user's own line.
            return

    def _harmless(self, computed: set[str]) -> dict[str, Any]:
        """Return values of computed arguments because of which no other argument is refused."""
        literal = self.literals.get
        objective = literal("objective")
        direction = literal("direction")
        repeats = literal("repeats")
        number = repeats if isinstance(repeats, int) else 1
        values: dict[str, Any] = {
            "name": "study",
            "model": len,
            "data": len,
            "epochs": _MANY,
            "trials": _MANY * max(1, number),
            "objective": "val_loss",
            "direction": "minimize",
            "sampler": "tpe" if literal("grid") is None else "grid",
            "grid": {"x": [0]} if literal("sampler") == "grid" else None,
        }
        if isinstance(direction, list | tuple):
            values["objective"] = [str(index) for index in range(len(direction))]
        if isinstance(objective, list | tuple):
            values["direction"] = ["minimize"] * len(objective)
        return {name: value for name, value in values.items() if name in computed}

    def _is_decided(self, keyword: ast.keyword) -> bool:
        """Return whether the text decides an argument: a certain value, or one of the file's names."""
        is_named = isinstance(keyword.value, ast.Name | ast.Lambda)
        return keyword.arg is not None and (is_named or self._is_certain(keyword.value))

    def _is_certain(self, value: ast.expr) -> bool:
        if _is_literal(value):
            return True
        return (
            isinstance(value, ast.Call)
            and self.members.get(ast.unparse(value.func)) in _PLAIN
            and all(map(_is_literal, value.args))
            and all(k.arg is not None and _is_literal(k.value) for k in value.keywords)
        )


class DeclaringFile:
    """A file's text, and the studies that it declares.

    Raises:
        StudyImportError: The file is not Python.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # What is below `if __name__ == "__main__":` is not run by an import.
        self._body = [
            statement for statement in parsed_file(path).body if not _is_main_block(statement)
        ]

    def studies(self) -> Iterator[DeclaredStudy]:
        """Yield the calls of `Study`, as far as importing the file is certain to come."""
        counts = Counter(name for node in self._nodes() for name in _bound(node))
        if not _REBINDING.isdisjoint(counts) or not _REBINDING.isdisjoint(self._names()):
            return
        may_run = any(isinstance(n, ast.Attribute) and n.attr in _RUNNING for n in self._nodes())
        members: dict[str, str] = {}
        for statement in self._body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                members |= {
                    n: m for n, m in _members(statement) if counts[n.partition(".")[0]] == 1
                }
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and members.get(ast.unparse(call.func)) == "Study":
                yield DeclaredStudy(
                    call, _target(statement), str(self._path.resolve()), members.copy()
                )
            elif may_run and any(isinstance(n, ast.Call) for n in outside_functions(statement)):
                # It may run a study, which ends the import.
                return

    def is_whole(self, entries: Iterable[str], *, computes: bool = False) -> bool:
        """Return whether the file's text alone decides what its studies are.

        That is so if it only imports libraries and defines functions, classes, constants and studies.
        ``entries`` are the directories in which its imports are found, beside its own and Python's. With
        ``computes``, the file may also compute values that no argument of a study names, such as its data.
        """
        path = [str(self._path.resolve().parent), *entries, *sys.path]
        studies = {study.call for study in self.studies() if study.is_literal}
        named = {n.id for s in studies for n in ast.walk(s) if isinstance(n, ast.Name)}

        def is_decided(statement: ast.stmt) -> bool:
            if _is_plain(statement, studies):
                return True
            bound = {name for node in ast.walk(statement) for name in _bound(node)}
            return computes and bool(studies) and bound.isdisjoint(named)

        return all(map(is_decided, self._body)) and not any(
            _is_users(name, path) for node in self._nodes() for name in _imported(node)
        )

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for statement in self._body for node in ast.walk(statement))

    def _names(self) -> set[str]:
        return {node.id for node in self._nodes() if isinstance(node, ast.Name)}


class _Members(ast.NodeTransformer):
    """Replacement of the names that a file gives to members of the package by their own."""

    def __init__(self, members: Mapping[str, str]) -> None:
        self._members = members

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = ast.Name(self._members[ast.unparse(node.func)], ast.Load())
        return ast.copy_location(ast.Call(name, node.args, node.keywords), node)


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _is_main_block(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and ast.unparse(statement.test) in {"__name__ == '__main__'", "'__main__' == __name__"}
    )


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds or changes, in whatever scope."""
    name = bound_name(node)
    if name is not None:
        yield name
    for field in ("arg", "rest") if not isinstance(node, ast.keyword) else ():
        if isinstance(getattr(node, field, None), str):
            yield getattr(node, field)
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name


def _members(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield how the file calls members of the package after this import, and their names."""
    of_sweeper = isinstance(statement, ast.ImportFrom) and (statement.module, statement.level) == (
        "sweeper",
        0,
    )
    for alias in statement.names:
        if isinstance(statement, ast.Import) and alias.name == "sweeper":
            yield from ((f"{alias.asname or 'sweeper'}.{name}", name) for name in _CLASSES)
        elif of_sweeper and alias.name in _CLASSES:
            yield alias.asname or alias.name, alias.name


def _target(statement: ast.stmt) -> str | None:
    """Return the only variable that an assignment binds."""
    targets = [getattr(statement, "target", None), *getattr(statement, "targets", ())]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names[0] if len(names) == 1 else None


def _is_plain(statement: ast.stmt, studies: Iterable[ast.Call]) -> bool:
    """Return whether a statement only imports, or defines what its text decides."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        defaults = [default for default in statement.args.kw_defaults if default is not None]
        return not statement.decorator_list and all(
            map(_is_literal, (*statement.args.defaults, *defaults))
        )
    if isinstance(statement, ast.ClassDef):
        inside = (_is_plain(member, ()) for member in statement.body)
        return not statement.decorator_list and not statement.keywords and all(inside)
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
        return True
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) and (
        value is None or value in studies or _is_literal(value)
    )


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a node imports, "" for one beside the file's own."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        yield "" if node.level else str(node.module)


def _is_users(module: str, path: list[str]) -> bool:
    """Return whether a module is the user's, or is not found where libraries are."""
    top = module.partition(".")[0]
    if top == "sweeper" or top in sys.stdlib_module_names:
        return False
    file = find_module_file(top, path)
    return file is None or is_users_source(file)
