"""Identifiers are in the field's words, and say what they hold."""

import ast
import re
from pathlib import Path

import pytest
from reading_figures import Figures, figures_of

import sweeper

RETIRED = frozenset(
    {
        *("glance", "glances", "marks", "birth", "births", "told", "heard"),
        *("lend", "lends", "lending", "lent", "place", "places"),
        *("transcript", "transcripts", "journal", "journals", "news"),
    }
)

FILLER_SHARE = {"sweeper": 0.01, "tests": 0.02}
"""Largest share of assignments that go to a name which says nothing (`reading_figures.FILLERS`)."""

TUPLES_PER_THOUSAND = {"sweeper": 0.5, "tests": 0.5}
"""Most assignments ``a, b = x, y`` in 1,000 code lines."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+")
_NAMES = ("id", "attr", "arg", "name", "asname", "module")
"""Fields of Python's syntax that hold an identifier."""


def is_retired(identifier):
    return any(word.lower() in RETIRED for word in _WORD.findall(identifier))


def retired_names(text):
    """Identifiers with a retired word, after their lines."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        names = [getattr(node, field, None) for field in _NAMES]
        retired = [name for name in names if isinstance(name, str) and is_retired(name)]
        lines += [f"{getattr(node, 'lineno', 0)}: {name}" for name in retired]
    return sorted(lines)


def test_no_identifier_and_no_module_has_a_retired_word():
    package = Path(sweeper.__file__).parent
    modules = {path: path.relative_to(package) for path in sorted(package.rglob("*.py"))}
    lines = [
        f"{m}:{name}" for path, m in modules.items() for name in retired_names(path.read_text())
    ]
    lines += [str(m) for m in modules.values() if any(map(is_retired, m.with_suffix("").parts))]
    assert lines == [], "\n".join(lines)


def test_control_retired_words_are_seen_and_others_are_not():
    text = (
        "def parse_place(told, placement, replace):\n"
        '    """A place, told of in prose."""\n'
        "    self.lending = BirthLine(marks=f'{told!r} of the place {heard}')  # lend\n"
        "    return 'place'\n"
    )
    third = [f"3: {name}" for name in ("BirthLine", "heard", "lending", "marks", "told")]
    assert retired_names(text) == ["1: parse_place", "1: told", *third]


@pytest.mark.parametrize("tree", ["sweeper", "tests"])
def test_no_more_names_than_before_say_nothing_of_what_they_hold(tree):
    figures = figures_of(Path(sweeper.__file__).parents[1] / tree)
    assert len(figures.places["assignments"]) > 1000
    assert figures.filler_share() <= FILLER_SHARE[tree], "\n".join(figures.places["fillers"])
    tuples = figures.per_thousand("tuples")
    assert tuples <= TUPLES_PER_THOUSAND[tree], "\n".join(figures.places["tuples"])


def test_control_fillers_and_tuple_assignments_are_counted_and_nothing_else_is():
    text = (
        "found = trial = 1\n"
        "for each, row in rows:\n"
        "    own, name = row.own, row.known\n"
        "    row.kept = load(given=name, key=lambda shown: shown)\n"
        "low, high = high, low\n"
        "first, second = bounds()\n"
    )
    figures = Figures()
    figures.add(text, "m.py")
    assert figures.places["fillers"] == [
        "m.py:1: found = trial = 1",
        "m.py:2: for each, row in rows:",
        "m.py:3: own, name = row.own, row.known",
    ]
    assert figures.places["tuples"] == ["m.py:3: own, name = row.own, row.known"]
    assert len(figures.places["assignments"]) == 10
    assert figures.filler_share() == 0.3
