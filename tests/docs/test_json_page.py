"""The page of what ``--json`` prints names each field that there is, and no other."""

import ast
import re
from pathlib import Path

import pytest
from doc_blocks import DOCS, ROOT

PAGE = (DOCS / "reference" / "json.md").read_text()
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
    "CheckReport": "replay/reports.py",
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
    found = set(_keys_returned(methods["to_json"], methods))
    for node in ast.walk(methods["to_json"]):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "json_fields":
            named = [str(each.value) for each in node.args[1:] if isinstance(each, ast.Constant)]
            found.update(named or all_fields)
    return found


def _keys_returned(function, methods):
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield from _keys(node.value, methods)


def _keys(found, methods):
    for key, value in zip(found.keys, found.values, strict=True):
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
    assert documented(PAGE, record) == printed(code, record)


def test_control_a_field_that_the_page_lacks_is_found():
    code = Path(ROOT / "sweeper" / "records/results.py").read_text()
    changed = code.replace("    bytes: int\n", "    bytes: int\n    more: int\n")
    assert printed(changed, "CheckpointRecord") - documented(PAGE, "CheckpointRecord") == {"more"}
    changed = code.replace('json_fields(self, "verification")', 'json_fields(self, "more")')
    lacking = printed(changed, "TrialRecord") ^ documented(PAGE, "TrialRecord")
    assert lacking == {"more", "verification"}
    assert {"values", "warm_start"} <= printed(code, "TrialRecord"), "those of ** are seen"
