"""A fingerprint names what a trial's bits depend on, and each difference by its name."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import pytest

from sweeper.train.fingerprint import Fingerprint, differences, take_fingerprint


@pytest.fixture
def here() -> Fingerprint:
    return take_fingerprint([test_the_same_process_has_no_differences], jit_compile=False)


def test_the_same_process_has_no_differences(here: Fingerprint) -> None:
    stored = json.loads(json.dumps(here.to_json()))
    again = take_fingerprint([test_the_same_process_has_no_differences], jit_compile=False)
    assert differences(stored, again.to_json()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": {"tensorflow": "9.9"}}, "tensorflow was 9.9 and is "),
        ({"processor": "Z80"}, "processor was Z80 and is "),
        ({"devices": ["CPU", "GPU: A100"]}, "devices was ['CPU', 'GPU: A100'] and is "),
        ({"threads": [8, 8]}, "threads was [8, 8] and is "),
        ({"onednn": "0"}, "onednn was 0 and is "),
        ({"deterministic": False}, "deterministic was False and is "),
        ({"jit_compile": True}, "jit_compile was True and is False"),
        ({"string_hash": 1}, "hash() of strings has changed"),
    ],
)
def test_each_difference_is_named(
    here: Fingerprint, change: dict[str, object], message: str
) -> None:
    stored = here.to_json()
    for name, value in change.items():
        stored[name] = {**stored[name], **value} if isinstance(value, dict) else value
    (difference,) = differences(stored, here.to_json())
    assert difference.startswith(message)


def test_a_changed_study_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "some_study.py"
    code = "def build(trial):\n    return None\n"
    names: dict[str, object] = {}
    file.write_text(code)
    exec(compile(code, str(file), "exec"), names)
    before = take_fingerprint([names["build"]], jit_compile=False)
    file.write_text(code + "# another line\n")
    after = take_fingerprint([names["build"]], jit_compile=False)
    assert differences(before.to_json(), after.to_json()) == ["some_study.py has changed"]


def test_two_files_of_one_name_are_two(tmp_path: Path) -> None:
    """The second stood for both: a change of the first was seen by nobody."""

    def build(directory: str, value: int) -> object:
        file = tmp_path / directory / "model.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"def build(trial):\n    return {value}\n")
        names: dict[str, object] = {}
        exec(compile(file.read_text(), str(file), "exec"), names)
        return names["build"]

    kept = build("b/deep", 1)
    before = take_fingerprint([build("a/deep", 1), kept], jit_compile=False)
    after = take_fingerprint([build("a/deep", 2), kept], jit_compile=False)
    assert differences(before.to_json(), after.to_json()) == ["a/deep/model.py has changed"]
    assert set(take_fingerprint([kept, kept], jit_compile=False).sources) == {"model.py"}


def test_factories_without_a_file_are_passed_over(here: Fingerprint) -> None:
    partial = take_fingerprint([functools.partial(print), print], jit_compile=False)
    assert partial.sources == {}
    assert dataclasses.replace(here, sources={}) == partial
