"""A fingerprint names what a trial's bits depend on, and each difference by its name."""

import json

import pytest

from sweeper.train.fingerprint import differences, take_fingerprint


@pytest.fixture
def here():
    return take_fingerprint(jit_compile=False)


def test_the_same_process_has_no_differences(here):
    recorded = json.loads(json.dumps(here))
    repeated = take_fingerprint(jit_compile=False)
    assert differences(recorded, repeated) == []


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
def test_each_difference_is_named(here, change, message):
    recorded = dict(here)
    for name, value in change.items():
        recorded[name] = {**recorded[name], **value} if isinstance(value, dict) else value
    (difference,) = differences(recorded, here)
    assert difference.startswith(message)
