"""The reference has every public name, described whole with an example, every column and every field of JSON."""

import ast
import re
import textwrap
from pathlib import Path

import database_page
import errors_page
import griffe
import pytest
from column_meanings import MEANINGS
from doc_blocks import DOCS, ROOT
from public_docstrings import has_example, public_object, public_paths, undescribed
from sqlalchemy import inspect

import sweeper

REFERENCE = DOCS / "reference"


def test_every_public_name_has_an_entry():
    texts = [page.read_text() for page in REFERENCE.glob("*.md")]
    pages = "\n".join([*texts, errors_page.page()])
    entries = {
        path.rpartition(".")[2] for path in re.findall(r"^::: (sweeper\.\S+)$", pages, re.MULTILINE)
    }
    assert set(sweeper.__all__) - entries == set()


@pytest.mark.parametrize("path", public_paths())
def test_a_public_name_has_an_example_and_leaves_nothing_undescribed(path):
    thing = public_object(path)
    assert has_example(thing), "add an 'Examples:' section with '>>> ' to its docstring"
    assert list(undescribed(thing)) == []


def visited(code):
    return griffe.visit("module", Path("module.py"), textwrap.dedent(code))


def test_control_what_is_left_out_is_found():
    module = visited(
        '''
        from dataclasses import dataclass

        def call(said, unsaid):
            """A call.

            Args:
                said: Something.
            """

        @dataclass
        class Record:
            """A record.

            Attributes:
                said: Something.

            Example:
                None that runs.
            """

            said: int
            unsaid: int
            _own: int

        class Thing:
            """A thing."""

            def __init__(self, unsaid): ...
            def method(self, argument):
                """A method."""
        '''
    )
    assert list(undescribed(module["call"])) == ["module.call(unsaid)"]
    assert list(undescribed(module["Record"])) == ["module.Record.unsaid"]
    assert list(undescribed(module["Thing"])) == [
        "module.Thing.__init__(unsaid)",
        "module.Thing.method(argument)",
    ]
    assert not has_example(module["Record"])
    assert not has_example(module["call"])


TABLES = [inspect(model).local_table for model in database_page.models()]


def undescribed_columns(table, meanings):
    """Its columns that have no meaning, and meanings of no column."""
    plain = {
        column.name for column in table.columns if not column.foreign_keys and column.name != "id"
    }
    return sorted(plain ^ set(meanings))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_described(table):
    assert undescribed_columns(table, MEANINGS[table.name]) == []
    assert f"## {table.name}" in database_page.page()


def test_control_a_column_without_a_meaning_and_a_meaning_without_a_column_are_found():
    [table] = [table for table in TABLES if table.name == "sweeper_epochs"]
    assert undescribed_columns(table, {"epoch": "from 0", "gone": "?"}) == ["gone", "metrics"]


JSON = (DOCS / "reference" / "json.md").read_text()
MODULES = {
    "StudyStatus": "records/results.py",
    "TrialStatus": "records/results.py",
    "TrialRecord": "records/results.py",
    "RungRecord": "records/lengths.py",
    "AttemptRecord": "records/results.py",
    "CheckpointRecord": "records/results.py",
    "VerificationRecord": "records/exactness.py",
    "AuditRecord": "records/exactness.py",
    "EvaluationRecord": "records/evaluations.py",
    "LengthRecord": "records/lengths.py",
    "CheckReport": "checks/check.py",
}


def documented(page, record):
    table = re.search(rf"<!-- fields: {record} -->\n\n((?:\|.*\n)+)", page)
    assert table, f"no table for {record}"
    return set(re.findall(r"^\| `(\w+)`", table[1], re.MULTILINE))


def printed(code, record):
    """The keys of what ``record.to_json()`` returns, those of ``**`` and of `json_fields` included."""
    [cls] = [n for n in ast.parse(code).body if isinstance(n, ast.ClassDef) and n.name == record]
    all_fields = {n.target.id for n in cls.body if isinstance(n, ast.AnnAssign)}
    methods = {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}
    if "JsonRecord" in {getattr(base, "id", "") for base in cls.bases}:
        assert "to_json" not in methods, "it prints what its base prints"
        return all_fields
    keys = set(_keys_returned(methods["to_json"], methods))
    for node in ast.walk(methods["to_json"]):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "json_fields":
            named = [
                str(argument.value)
                for argument in node.args[1:]
                if isinstance(argument, ast.Constant)
            ]
            keys.update(named or all_fields)
    return keys


def _keys_returned(function, methods):
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield from _keys(node.value, methods)


def _keys(dictionary, methods):
    for key, value in zip(dictionary.keys, dictionary.values, strict=True):
        if isinstance(key, ast.Constant):
            yield str(key.value)
            continue
        for node in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            if isinstance(node, ast.Dict):
                yield from _keys(node, methods)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from _keys_returned(methods[node.func.attr], methods)


@pytest.mark.parametrize("record", MODULES)
def test_the_page_has_every_field_that_is_printed(record):
    code = (ROOT / "sweeper" / MODULES[record]).read_text()
    assert documented(JSON, record) == printed(code, record)


def test_control_a_field_that_the_page_lacks_is_found():
    code = (ROOT / "sweeper" / "records/results.py").read_text()
    changed = code.replace("    bytes: int\n", "    bytes: int\n    more: int\n")
    assert printed(changed, "CheckpointRecord") - documented(JSON, "CheckpointRecord") == {"more"}
    changed = code.replace('json_fields(self, "verification")', 'json_fields(self, "more")')
    lacking = printed(changed, "TrialRecord") ^ documented(JSON, "TrialRecord")
    assert lacking == {"more", "verification"}
    assert {"values", "warm_start"} <= printed(code, "TrialRecord"), "those of ** are seen"
