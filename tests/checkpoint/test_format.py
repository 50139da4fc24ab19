"""Tensors and values come back as they were, and other readers can open the files."""

import json
import math
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from checkpoint_faults import digest, snapshot
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sweeper.checkpoint.format import Snapshot, decode_values, encode_values
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64"),
    *("int64", "int8", "uint32", "uint8", "bool"),
)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@st.composite
def arrays(draw):
    dtype = dtype_of(draw(st.sampled_from(DTYPES + FLOAT8)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    count = int(np.prod(shape))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    array = np.frombuffer(raw, dtype).reshape(shape)
    if dtype == np.bool_:
        array = np.frombuffer(raw, np.uint8).reshape(shape) > 127
    return array.T if draw(st.booleans()) else array


def made_of(tensors, names=(), **rest):
    return Snapshot(
        **{"step": 1, "epoch": 0, "state": {}, "metrics": {}, **rest},
        tensors=tensors,
        digest_names=tuple(names),
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(st.text(max_size=8).filter(lambda n: n != "__metadata__"), arrays()))
def test_every_tensor_round_trips_to_the_bit(tmp_path_factory, tensors):
    store = CheckpointStore(tmp_path_factory.mktemp("round-trip"))
    taken = made_of(tensors, tensors)
    expected = digest(taken)
    committed = store.commit(taken)
    loaded = load_checkpoint(committed.path)
    assert loaded.tensors.keys() == tensors.keys()
    assert all(same(loaded.tensors[name], tensors[name]) for name in tensors)
    assert all(a.flags.writeable and a.flags.aligned for a in loaded.tensors.values())
    assert loaded.digest == committed.digest == expected


def test_what_is_written_opens_in_safetensors(store):
    tensors = {
        f'{name}/é "{shape}': np.ones(shape).astype(dtype_of(name))
        for name in DTYPES
        for shape in [(), (0, 3), (2, 3)]
    }
    path = store.commit(made_of(tensors)).path / "tensors.safetensors"
    whole = safetensors.numpy.load_file(path)
    assert whole.keys() == tensors.keys()
    assert all(same(whole[name], tensors[name]) for name in tensors)
    with safetensors.safe_open(path, "np") as file:
        assert all(same(file.get_tensor(name), tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int32).reshape(4, 6)[::2, 1::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float32(3), (2, 2)),
        np.arange(3, dtype=">i4"),
        np.random.default_rng(0).standard_normal(1_300_000),
    ],
    ids=["strided", "fortran", "broadcast", "big-endian", "larger than a chunk"],
)
def test_an_array_of_another_layout_is_stored_by_its_values(store, array):
    loaded = load_checkpoint(store.commit(made_of({"a": array}, ["a"])).path)
    plain = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    assert same(loaded.tensors["a"], plain)
    assert loaded.digest == digest(made_of({"a": plain}, ["a"]))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"a": np.zeros(2, np.complex128)}, "complex128"),
        ({"a": np.array(["x"])}, "dtype str"),
        ({"a": np.array([None])}, "object"),
        ({"a": 3.0}, "'a' is a float"),
        ({"a": [1, 2]}, "'a' is a list"),
        ({"__metadata__": np.zeros(1)}, "__metadata__"),
        ({"\ud800": np.zeros(1)}, "cannot be named"),
    ],
)
def test_what_safetensors_cannot_hold_is_refused_by_name(store, tensors, reason):
    with pytest.raises(CheckpointError, match=reason):
        store.commit(made_of(tensors))
    assert store.list() == ()


def test_the_state_is_what_it_was_when_the_snapshot_was_taken(store):
    history = [1.0]
    taken = made_of({}, state={"history": history})
    history.append(2.0)
    assert load_checkpoint(store.commit(taken).path).state == {"history": [1.0]}


def test_the_digest_is_of_values_dtypes_shapes_and_order_and_not_of_names():
    a = np.arange(6, dtype=np.int32)
    b = np.ones(6, np.int32)
    of = digest(made_of({"a": a, "b": b}, ["a", "b"]))
    assert of == digest(made_of({"x": a.copy(), "y": b, "other": a}, ["x", "y"]))
    for tensors, names in [
        ({"a": a, "b": b}, ["b", "a"]),
        ({"a": a, "b": b}, ["a"]),
        ({"a": a.reshape(2, 3), "b": b}, ["a", "b"]),
        ({"a": a.view(np.uint32), "b": b}, ["a", "b"]),
        ({"a": a, "b": b * 2}, ["a", "b"]),
    ]:
        assert of != digest(made_of(tensors, names))
    # The digest of known values never changes.
    assert digest(snapshot(3)) == "813e49b4c8e395fc13f58e065499bdad"


def test_variables_updated_while_they_are_written_are_stored_as_they_were(tmp_path):
    tf = pytest.importorskip("tensorflow")
    dtypes = (tf.float32, tf.float16, tf.bfloat16, tf.int64)
    variables = [
        tf.Variable(tf.fill(shape, tf.cast(3, dtype)))
        for dtype in dtypes
        for shape in [(), (0, 2), (4, 25)]
    ]

    class Training(FileOperations):
        def write(self, descriptor, data):
            for variable in variables:
                variable.assign_add(tf.ones_like(variable))
            return super().write(descriptor, data)

    def held():
        return {f"v{i}": v.read_value() for i, v in enumerate(variables)}

    values = [v.numpy().tobytes() for v in variables]
    taken = made_of(held(), held())
    digest_before = digest(taken)
    store = CheckpointStore(tmp_path / "checkpoints", operations=Training())
    loaded = load_checkpoint(store.commit(taken).path)
    assert [loaded.tensors[f"v{i}"].tobytes() for i in range(len(variables))] == values
    assert loaded.digest == digest_before
    assert variables[0].numpy() > 6, "it was updated at each write"
    assert digest(made_of(held(), held())) != digest_before


def test_tensors_that_repeat_another_are_left_out_of_the_file_and_of_the_digest(tmp_path):
    def committed(second, third):
        values = {"v": 1.0, "v/1": second, "v/2": third, "w": 1.0}
        snapshot = Snapshot(
            step=3,
            epoch=0,
            tensors={name: np.full(5, value, np.float32) for name, value in values.items()},
            state={},
            metrics={},
            digest_names=tuple(values),
            repeated={"v": ("v/1", "v/2")},
        )
        expected = digest(snapshot)
        checkpoint = CheckpointStore(tmp_path / f"{second} {third}").commit(snapshot)
        assert checkpoint.digest == expected
        return checkpoint

    alike = committed(1.0, 1.0)
    apart = committed(1.0, 2.0)
    assert sorted(load_checkpoint(alike.path).tensors) == ["v", "w"]
    assert sorted(load_checkpoint(apart.path).tensors) == ["v", "v/1", "v/2", "w"]
    assert alike.digest != apart.digest


strings = st.text(st.characters() | st.characters(categories=["Cs"])) | st.sampled_from(
    ["$float", "$int", "$$float", "$", ""]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | strings,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(strings, v, max_size=4),
)


def alike(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    return a == b


PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]


@given(values)
@example(10**5000)
@example([-(1 << 128) - 1, math.inf, -math.inf, PAYLOAD, -0.0, 5e-324, "\ud800"])
@example([{"$float": "7ff8000000000000"}, {"$int": "0x10"}, {"$$int": {"$x": 1}}])
def test_every_plain_value_round_trips_to_the_bit(value):
    assert alike(decode_values(encode_values(value)), value)


def test_control_plain_json_loses_what_the_tags_keep():
    assert not alike(json.loads(json.dumps(PAYLOAD)), PAYLOAD)


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [0, (1, 2)]}, r"state\['a'\]\[1\] is a builtins.tuple"),
        ({"a": np.float64(1)}, r"state\['a'\] is a numpy.float64"),
        ({"a": {1: 2}}, r"state\['a'\] has the key 1"),
        ({"a": LOOP}, "contains itself"),
    ],
)
def test_a_state_that_would_come_back_otherwise_is_refused_at_once_by_its_path(value, reason):
    with pytest.raises(CheckpointError, match=reason):
        made_of({}, state=value)
