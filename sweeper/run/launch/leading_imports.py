"""Imports of libraries at the beginning of a study's file.

A process that does not import the study may execute them once for all trials, because no other
statement of the file precedes them that could change their effect.
"""

from __future__ import annotations

import ast
import os
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from sweeper.inspection.sources import is_users_source
from sweeper.run.launch.sources import file_of
from sweeper.run.protocol.messages import StudySource
from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything

_MOST = 255
"""Maximum number of statements."""


def leading_imports(source: StudySource) -> Sequence[ast.stmt]:
    """Return the statements at the top of the study's file that import libraries.

    Statements that set environment variables of Keras or TensorFlow are returned, too. The first
    statement that does anything else, or imports one of the user's modules, ends the sequence.
    """
    file = file_of(source)
    try:
        body = [] if file is None else ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: list[ast.stmt] = []
    for step in body[:_MOST]:
        is_text = isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
        if not (is_text or _sets_keras(step) or _imports_libraries(step, str(file))):
            break
        found.append(step)
    return found


def execute_all(steps: Sequence[ast.stmt], fit: Callable[[], bool]) -> int:
    """Execute `leading_imports` as far as they may run before the study is imported.

    Args:
        steps: The statements.
        fit: Returns whether this process can be forked.

    Returns:
        The number, counted from 1, of the first statement that failed, made the process unfit to fork,
        or drew random numbers (the study would then draw different ones); 0 if there is none.
    """
    seed_everything(IMPORT_SEED)
    undrawn = _random_state()
    for number, step in enumerate(steps, 1):
        names = {"os": os, "__name__": __name__}
        try:
            exec(compile(ast.Module([step], []), "<imports of the study>", "exec"), names)  # noqa: S102
        except Exception:
            return number
        if not fit() or _random_state() != undrawn:
            return number
    return 0


def _random_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002 - the global one


def _sets_keras(step: ast.stmt) -> bool:
    """Return whether a statement sets an environment variable of Keras or TensorFlow."""
    match step:
        case ast.Assign(
            targets=[
                ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id="os"), attr="environ"),
                    slice=ast.Constant(value=str(name)),
                )
            ],
            value=ast.Constant(value=str()),
        ):
            return name.startswith(("KERAS_", "TF_"))
        case _:
            return False


def _imports_libraries(step: ast.stmt, file: str) -> bool:
    match step:
        case ast.Import(names=names):
            return all(_is_library(name.name, file) for name in names)
        case ast.ImportFrom(module=str(module), level=0):
            return _is_library(module, file)
        case _:
            return False


def _is_library(module: str, file: str) -> bool:
    """Return whether ``import module`` in ``file`` finds a library, without importing it."""
    top = module.partition(".")[0]
    if top in sys.modules or top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top, [str(Path(file).parent), *sys.path])
    return spec is not None and spec.origin is not None and not is_users_source(spec.origin)
