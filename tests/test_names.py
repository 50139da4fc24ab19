"""Identifiers are in the field's words."""

import ast
import re
from pathlib import Path

import sweeper

RETIRED = frozenset(
    {
        *("glance", "glances", "marks", "birth", "births", "told", "heard"),
        *("lend", "lends", "lending", "lent", "place", "places"),
        *("transcript", "transcripts", "journal", "journals", "news"),
    }
)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+")
_NAMES = ("id", "attr", "arg", "name", "asname", "module")
"""Fields of Python's syntax that hold an identifier."""


def is_retired(identifier):
    return any(word.lower() in RETIRED for word in _WORD.findall(identifier))


def retired_names(text):
    """Identifiers with a retired word, after their lines."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = [getattr(node, field, None) for field in _NAMES]
        retired = [name for name in names if isinstance(name, str) and is_retired(name)]
        found += [f"{getattr(node, 'lineno', 0)}: {name}" for name in retired]
    return sorted(found)


def test_no_identifier_and_no_module_has_a_retired_word():
    package = Path(sweeper.__file__).parent
    modules = {path: path.relative_to(package) for path in sorted(package.rglob("*.py"))}
    found = [
        f"{m}:{name}" for path, m in modules.items() for name in retired_names(path.read_text())
    ]
    found += [str(m) for m in modules.values() if any(map(is_retired, m.with_suffix("").parts))]
    assert found == [], "\n".join(found)


def test_control_retired_words_are_seen_and_others_are_not():
    text = (
        "def parse_place(told, placement, replace):\n"
        '    """A place, told of in prose."""\n'
        "    self.lending = BirthLine(marks=f'{told!r} of the place {heard}')  # lend\n"
        "    return 'place'\n"
    )
    third = [f"3: {name}" for name in ("BirthLine", "heard", "lending", "marks", "told")]
    assert retired_names(text) == ["1: parse_place", "1: told", *third]
