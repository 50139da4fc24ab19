"""Plain values come back from JSON exactly as they were."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.checkpoint.format import decode_values, encode_values
from sweeper.errors import CheckpointError

characters = st.characters() | st.characters(categories=["Cs"])
strings = st.text(characters) | st.sampled_from(["$float", "$int", "$$float", "$", ""])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | strings
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(strings, v, max_size=4)
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b


@given(values)
def test_every_plain_value_round_trips_to_the_bit(value):
    assert same(decode_values(encode_values(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**5000, id="beyond the decimal limit"),
        -(1 << 128) - 1,
        math.inf,
        -math.inf,
        struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0],
        -0.0,
        5e-324,
        {"$float": "7ff8000000000000"},
        {"$int": "0x10"},
        {"$$int": {"$x": 1}},
        "\ud800",
    ],
)
def test_values_that_plain_json_would_change_round_trip(value):
    assert same(decode_values(encode_values(value)), value)


def test_control_plain_json_loses_what_the_tags_keep():
    payload = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert not same(json.loads(json.dumps(payload)), payload)
    assert not same(json.loads(json.dumps((1, 2))), (1, 2))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [0, (1, 2)]}, r"state\['a'\]\[1\] is a builtins.tuple"),
        ({"a": np.float64(1)}, r"state\['a'\] is a numpy.float64"),
        ({"a": b"x"}, r"state\['a'\] is a builtins.bytes"),
        ({"a": {1: 2}}, r"state\['a'\] has the key 1"),
    ],
)
def test_a_value_that_would_come_back_otherwise_is_refused_by_its_path(value, path):
    with pytest.raises(CheckpointError, match=path):
        encode_values(value)


def test_a_value_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="contains itself"):
        encode_values(loop)
