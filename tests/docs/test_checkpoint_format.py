"""The specification of a checkpoint is enough to read one, and to write one that sweeper reads."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from doc_blocks import DOCS, blocks
from safetensors.numpy import save_file

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.store import CheckpointStore

[READER] = [
    block.text
    for block in blocks(DOCS / "reference" / "checkpoint-format.md")
    if block.file == "read_checkpoint.py"
]
STATE = {"model": ["kernel", "bias"], "odd": [math.nan, -(2**80), {"$float": 1.5}], "none": None}


@pytest.fixture
def written(tmp_path):
    """A checkpoint that sweeper wrote."""
    kernel = np.arange(6, dtype="float32").reshape(2, 3)
    tensors = {"model/00000": kernel, "model/00001": np.float64(2.5), "seed": np.uint32([1, 2])}
    store = CheckpointStore(tmp_path / "checkpoints", origin=Origin("s", "i" * 32, 3, 7))
    snapshot = Snapshot(420, 2, tensors, STATE, {"loss": 0.5}, ("model/00000", "model/00001"))
    path = store.commit(snapshot, trained_seconds=1.5).path
    assert isinstance(path, Path)
    return path


def read(directory):
    names = {"__name__": "read_checkpoint"}
    exec(compile(READER, "read_checkpoint.py", "exec"), names)
    return names["read"](directory)


def test_the_pages_reader_reads_what_sweeper_wrote(written):
    manifest, tensors, state = read(written)
    assert written.name == "step-000000420"
    assert (manifest["step"], manifest["epoch"], manifest["metrics"]) == (420, 2, {"loss": 0.5})
    assert manifest["origin"]["trial"] == 3
    assert manifest["digest"] == load_checkpoint(written).digest
    np.testing.assert_array_equal(tensors["model/00000"], np.arange(6).reshape(2, 3))
    assert state["model"] == ["kernel", "bias"]
    assert state["odd"] == [
        {"$float": "7ff8000000000000"},
        {"$int": hex(-(2**80))},
        {"$$float": 1.5},
    ]


def test_the_pages_reader_needs_nothing_of_sweepers(written, tmp_path):
    (tmp_path / "read_checkpoint.py").write_text(READER)
    code = (
        "import sys, pathlib, read_checkpoint as r; r.read(pathlib.Path(sys.argv[1]));"
        "print([name for name in sys.modules if name.partition('.')[0] == 'sweeper'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", code, str(written)]
    process = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"


@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors", "state.json"])
def test_control_a_flipped_bit_is_found_by_the_pages_reader(written, name):
    text = bytearray((written / name).read_bytes())
    text[-3] ^= 1
    (written / name).write_bytes(text)
    with pytest.raises((AssertionError, AttributeError)):
        read(written)


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def digest(data):
    return xxhash.xxh3_128_hexdigest(data)


def test_what_is_written_by_the_specification_alone_is_read_by_sweeper(tmp_path):
    directory = tmp_path / "step-000000010"
    directory.mkdir()
    # Larger elements first, as the page says.
    tensors = {"optimizer/00000": np.int64(10), "model/00000": np.ones((2, 2), "float32")}
    save_file({name: np.asarray(value) for name, value in tensors.items()}, directory / "t")
    (directory / "t").rename(directory / "tensors.safetensors")
    (directory / "state.json").write_bytes(compact({"model": ["kernel"], "x": {"$int": "0x1f"}}))
    entries = [
        [name, value.dtype.name, list(value.shape), digest(value.tobytes())]
        for name, value in tensors.items()
    ]
    text = "".join(f"{d}[{','.join(map(str, s))}]{checksum};" for _, d, s, checksum in entries)
    files = [
        [name, (directory / name).stat().st_size, digest((directory / name).read_bytes())]
        for name in ("tensors.safetensors", "state.json")
    ]
    content = compact(
        {
            "format": 1,
            "step": 10,
            "epoch": 1,
            "digest": digest(text.encode()),
            "digest_names": [name for name, *_ in entries],
            "metrics": {},
            "trained_seconds": 0.0,
            "files": files,
            "tensors": entries,
            "versions": {},
        }
    )
    line = b'{"xxh3_128":"' + digest(content).encode() + b'","manifest":' + content + b"}\n"
    (directory / "manifest.json").write_bytes(line)
    loaded = load_checkpoint(directory)
    assert (loaded.step, loaded.epoch, loaded.digest) == (10, 1, digest(text.encode()))
    assert loaded.state == {"model": ["kernel"], "x": 31}
    np.testing.assert_array_equal(loaded.tensors["model/00000"], np.ones((2, 2)))
