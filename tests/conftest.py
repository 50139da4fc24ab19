"""What every test shares: a quiet TensorFlow with one thread, and which tests run only when asked.

The thread counts are set by environment variables because TensorFlow takes others only before its
first op, and which test runs that is nobody's to say. Trial processes set their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"

_ON_REQUEST = ("chaos", "soak")

_LONGEST_FIRST = ("system", "exactness", "training", "execution", "verification")
"""Directories whose files begin first, so that no long one is left to one process at the end: one of
each in turn, because the first kind waits for processes of its own and the others compute."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give TensorFlow the one thread that inline trials ask for, before any module runs an op."""
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long suites out unless markers are asked for by name; begin with long files."""
    items[:] = _in_turn(items)
    for item in items:
        if any(map(item.get_closest_marker, _ON_REQUEST)):
            item.add_marker(pytest.mark.timeout(0))
    if config.option.markexpr:
        return
    long = [item for item in items if any(map(item.get_closest_marker, _ON_REQUEST))]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def _in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests of each file together, the files in the order in which they are to begin."""
    files: dict[str, dict[Path, list[pytest.Item]]] = {}
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        files.setdefault(folder, {}).setdefault(item.path, []).append(item)
    long = [list(files.pop(folder, {}).values()) for folder in _LONGEST_FIRST]
    turns = chain.from_iterable(zip_longest(*long, fillvalue=()))
    short = chain.from_iterable(folder.values() for folder in files.values())
    return list(chain.from_iterable(chain(turns, short)))


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """Give the URL of a server of the S3 protocol on loopback; it has the bucket ``sweeps``."""
    from object_faults import s3_server

    with s3_server() as url:
        yield url


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Say how a process of tests died; what it was at is only told once all others are through."""
    if not error:
        return
    ended = node.gateway._io.popen.wait(timeout=10)
    print(f"\n{node.gateway.id} ended with {ended} (negative: by that signal)", file=sys.__stderr__)
