"""The corpus, read from its files without importing them: what an import runs is a trial's.

A study is a call ``study("name", "its kind", expectation, …)`` at the top level of a file in ``studies/``,
or a decorator such as ``study_callback``; all but its factories are literals.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FILES = Path(__file__).parents[1] / "corpus" / "exactness"

Outcome = Literal["identical", "refused", "silent"]

BY_DEFAULT = frozenset(
    {
        # A callback's own state, and a clock, which differs from run to run.
        *("callback-with-a-list", "time-history"),
        # What the walk captures: in closures and in modules.
        *("loss-closure-counter", "module-level-state"),
        # Made once at the top of the file, a network unfrozen late, and one of a step's own.
        *("step-with-objects-at-top", "unfrozen-by-callback", "training-step-own-network"),
        # Refused at once, and by the second segment.
        *("set-that-grows", "pydataset-progressive"),
    }
)
"""What the tests run by default: of every kind of holder and every verdict."""


@dataclass(frozen=True)
class Expectation:
    """What a study is to come to.

    Attributes:
        words: Stand in the refusal, all of them, in whatever case.
        by: The last attempt that the refusal may end: 1 where the state changes with the batches,
            2 where it changes between epochs.
    """

    outcome: Outcome
    words: tuple[str, ...] = ()
    by: int = 1


@dataclass(frozen=True)
class CorpusStudy:
    """One study of the corpus.

    Attributes:
        kind: One line: what holds the state, and how the study uses it.
        target: What `sweeper run` would be given.
        steps: Batches in each of its four epochs.
        clocks: Whether it keeps what a clock said; then only what results depend on is compared.
    """

    name: str
    kind: str
    expects: Expectation
    target: str
    steps: int = 5
    clocks: bool = False

    @property
    def kills(self):
        """The checkpoints that it is killed after: in the first epoch, at the second's end, in the third."""
        return [2, 2 * self.steps, 2 * self.steps + 2]


def _identical():
    return Expectation("identical")


def _refused(*words, by=1):
    return Expectation("refused", words, by)


def _study_of(call, file):
    name, kind, expects = call.args
    expects = eval(ast.unparse(expects), {"identical": _identical, "refused": _refused})
    name = ast.literal_eval(name)
    options = {
        option.arg: ast.literal_eval(option.value)
        for option in call.keywords
        if option.arg in ("steps", "clocks")
    }
    target = f"{file}:{name.upper().replace('-', '_')}"
    return CorpusStudy(name, ast.literal_eval(kind), expects, target, **options)


def _calls_in(tree):
    for node in tree.body:
        calls = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
        for call in calls:
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("study"):
                yield call


CORPUS = [
    _study_of(call, file)
    for file in sorted(FILES.glob("*.py"))
    for call in _calls_in(ast.parse(file.read_text()))
]


def find(name):
    """Return the study of this name."""
    [corpus_study] = [study for study in CORPUS if study.name == name]
    return corpus_study
