"""What the corpus holds, read from its files without importing them: what importing runs is a trial's.

A study is a call ``study("name", "its kind", expectation, …)`` at the top level of a file in
``studies/``, or a decorator such as ``study_callback``. Its name, expectation and whatever the harness
must know before a process exists are literals in that call; the factories are not looked at here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

STUDIES = Path(__file__).with_name("studies")

_STUDY = ("study", "study_callback", "study_model", "study_data")

Outcome = Literal["identical", "refused", "silent"]

BY_DEFAULT = frozenset(
    {
        # A callback's own state, and a clock, which differs from run to run.
        *("callback-with-a-list", "time-history"),
        # What the walk captures: in a closure and in a module.
        *("loss-closure-counter", "module-global-int"),
        # Made once at the top of the file, a network unfrozen late, and one of a step's own.
        *("step-with-objects-at-top", "unfrozen-by-callback", "training-step-own-network"),
        # Refused at once, and by the second segment.
        *("set-that-grows", "pydataset-progressive"),
    }
)
"""What the tests run by default: of every kind of holder and every verdict, at the first kill and later, one."""


@dataclass(frozen=True)
class Expectation:
    """What a study is to come to.

    Attributes:
        outcomes: Any of these will do.
        words: Stand in the refusal, all of them, in whatever case.
        by: The last segment that the refusal may end: 1 where the state changes with the batches,
            2 where it changes between epochs.
    """

    outcomes: tuple[Outcome, ...]
    words: tuple[str, ...] = ()
    by: int = 1


@dataclass(frozen=True)
class StudyPart:
    """One study of the corpus.

    Attributes:
        kind: One line: what holds the state, and how the study uses it.
        group: The stem of its file.
        epochs, steps: How many epochs, and batches in each.
        clocks: Whether it keeps what a clock said, so that what its callbacks hold differs from run
            to run; then only what results depend on is compared.
    """

    name: str
    kind: str
    group: str
    expects: Expectation
    epochs: int = 4
    steps: int = 5
    clocks: bool = False
    objective: str = "loss"
    deterministic: bool = True

    @property
    def file(self):
        return STUDIES / f"{self.group}.py"


@cache
def groups():
    """The stems of the files that hold studies."""
    return tuple(file.stem for file in sorted(STUDIES.glob("*.py")) if _calls(file))


@cache
def studies_of(group):
    """The studies in one file, in their order."""
    file = STUDIES / f"{group}.py"
    return tuple(_part(call, group) for call in _calls(file))


def find(name):
    """The study called ``name``."""
    for group in groups():
        for part in studies_of(group):
            if part.name == name:
                return part
    msg = f"no study of the corpus is called {name!r}; `python tests/exactness` lists them"
    raise LookupError(msg)


@cache
def _tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def _calls(file):
    return list(_calls_in(_tree(file)))


def _calls_in(tree):
    for node in tree.body:
        calls = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
        for call in calls:
            function = call.func if isinstance(call, ast.Call) else None
            if isinstance(function, ast.Name) and function.id in _STUDY:
                yield call


def _part(call, group):
    name, kind = (ast.literal_eval(argument) for argument in call.args[:2])
    options = {
        keyword.arg: ast.literal_eval(keyword.value)
        for keyword in call.keywords
        if keyword.arg in StudyPart.__dataclass_fields__
    }
    return StudyPart(name, kind, group, _expectation(call.args[2]), **options)


def _expectation(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        msg = f"line {node.lineno}: expected identical(), refused(…) or either(…)"
        raise TypeError(msg)
    outcomes = {
        "identical": ("identical",),
        "refused": ("refused",),
        "either": ("identical", "refused"),
    }
    words = tuple(ast.literal_eval(argument) for argument in node.args)
    options = {k.arg or "": ast.literal_eval(k.value) for k in node.keywords}
    return Expectation(outcomes[node.func.id], words, **options)
