"""Identifiers are in the field's words."""

import io
import re
import tokenize
from pathlib import Path

import sweeper

RETIRED = frozenset(
    {
        *("glance", "glances", "marks", "birth", "births", "told", "heard"),
        *("lend", "lends", "lending", "lent", "place", "places"),
        *("transcript", "transcripts", "journal", "journals", "news"),
    }
)

ALLOWED = {}
"""An identifier that has to keep a retired word, and why."""

_F_STRING = re.compile(r"[rR]?[fF]")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+")


def is_retired(identifier):
    return any(word.lower() in RETIRED for word in _WORD.findall(identifier))


def retired_names(text):
    """Identifiers with a retired word, also in the expressions of f-strings, after their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        names = []
        if token.type == tokenize.NAME:
            names = [token.string]
        elif token.type == tokenize.STRING and _F_STRING.match(token.string):
            names = [
                name
                for field in re.findall(r"{([^{}]*)}", token.string.replace("{{", ""))
                for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", field))
            ]
        for name in names:
            if is_retired(name) and name not in ALLOWED:
                yield f"{token.start[0]}: {name}"


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
    third = [f"3: {name}" for name in ("lending", "BirthLine", "marks", "told", "heard")]
    assert list(retired_names(text)) == ["1: parse_place", "1: told", *third]
