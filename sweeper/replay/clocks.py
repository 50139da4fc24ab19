"""Names of the attributes, keys and metrics that a user's callback gives measured times.

A measured time that is rounded, or a date, can be equal in two runs and another one in the third. So a
path is excused too where the code shows that its value comes of a clock. Only that path is: what else the
same callback keeps counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from sweeper.independence.reports import Authored, StudyAuthors
from sweeper.replay.findings import Difference, ranked

_CLOCKS = ("time.", "datetime.", "date.")


def excuse_measured(found: Iterable[Difference], authors: StudyAuthors | None) -> list[Difference]:
    """Return ``found``, with a note of what the callbacks' code computes from a clock."""
    measured = {} if authors is None else measured_names(authors)
    return ranked(
        each.excused() if each.excusable and _is_measured(each, measured) else each
        for each in found
    )


def measured_names(authors: StudyAuthors) -> dict[str, frozenset[str]]:
    """Return, by callback, the attributes and keys that it gives values computed from a clock."""
    return {owner.name: frozenset(_of(owner)) for owner in authors.callbacks}


def _is_measured(difference: Difference, measured: dict[str, frozenset[str]]) -> bool:
    if difference.component in ("history", "position"):
        # A callback adds it to the logs, and nothing but its name tells which one.
        metrics = {part for name in difference.names for part in name.split("/")}
        return any(metrics & names for names in measured.values())
    return any(
        difference.name.startswith(f"callback {owner}") and difference.names & names
        for owner, names in measured.items()
    )


def _of(owner: Authored) -> Iterator[str]:
    clocks = [suspect for suspect in owner.suspects if suspect.call.startswith(_CLOCKS)]
    for file in {suspect.line.file for suspect in clocks}:
        lines = {suspect.line.line for suspect in clocks if suspect.line.file == file}
        try:
            tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            # Without its text nothing is known of it, and nothing is excused.
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(
                node.lineno <= line <= (node.end_lineno or 0) for line in lines
            ):
                yield from _Measured(lines).names(node)


class _Measured:
    """The names within one class that a clock's value reaches, found by repetition.

    Args:
        lines: Lines with a call of a clock.
    """

    def __init__(self, lines: set[int]) -> None:
        self._lines = lines
        self._names: set[str] = set()

    def names(self, body: ast.ClassDef) -> set[str]:
        known = -1
        while len(self._names) > known:
            known = len(self._names)
            for node in ast.walk(body):
                self._look_at(node)
        return {name for name in self._names if not name.startswith("local ")}

    def _look_at(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef):
            returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            if any(value is not None and self._is_measured(value) for value in returned):
                self._names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            if node.value is not None and self._is_measured(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    self._give(target)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and any(map(self._is_measured, node.args))
        ):
            self._give(node.func.value)

    def _give(self, target: ast.expr) -> None:
        """Add the innermost name that ``target`` leads to."""
        if isinstance(target, ast.Subscript):
            key = target.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._names.add(key.value)
            else:
                self._give(target.value)
        elif isinstance(target, ast.Attribute):
            self._names.add(target.attr)
        elif isinstance(target, ast.Name):
            self._names.add(f"local {target.id}")
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._give(each)

    def _is_measured(self, value: ast.expr) -> bool:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and node.lineno in self._lines:
                return True
            name: object = None
            if isinstance(node, ast.Name):
                name = f"local {node.id}"
            elif isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                name = node.slice.value
            if name in self._names:
                return True
        return False
