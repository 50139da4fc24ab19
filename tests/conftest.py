"""What every test shares: a quiet TensorFlow with one thread, and which tests run only when asked.

The thread counts are set by environment variables because TensorFlow takes others only before its
first op, and which test runs that is nobody's to say. Trial processes set their own.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"

_ENVIRONMENT = dict(os.environ)
"""Of the whole run, whatever the test sets that is the first to need a server."""

_ON_REQUEST = ("chaos", "pages", "soak", "whole")

_LONGEST_FIRST = ("system", "exactness", "training", "execution", "docs", "verification")
"""Directories whose files begin first, so that no long one is left to one process at the end: one of
each in turn, because the first kind waits for processes of its own and the others compute."""

_START_SERVERS = (
    "cli",
    "conformance",
    "evaluating",
    "execution",
    "independence",
    "report",
    "system",
    "verification",
)
"""Directories whose tests run studies."""

_TRAIN_HERE = ("cli", "export", "stored", "training")
"""Directories whose tests train in this process."""

_OF_THE_RUN = ("PYTEST_", "SWEEPER_TEST_")
"""Beginnings of environment variables that are the test run's own."""

_FAST = ("inspection", "search", "storage", "typing")
"""Directories whose tests take seconds in all: what ``--fast`` runs, with the files beside this one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fast``."""
    parser.addoption("--fast", action="store_true", help="only what takes seconds, not minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse two files of one name: tests import each other's helpers by it, and so does pytest.

    A run of one of them alone would not notice.
    """
    seen: dict[str, Path] = {}
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        if file.name in {"conftest.py", "__init__.py", "__main__.py"}:
            continue
        if file.name.startswith("test_") and file.name in seen:
            msg = f"{seen[file.name]} and {file} have one name; give one of them another"
            raise pytest.UsageError(msg)
        seen[file.name] = file


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give TensorFlow the one thread that inline trials ask for, before any module runs an op."""
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # For tests of many replicas; what names no device runs on the first.
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long suites out unless markers are asked for by name; begin with long files."""
    items[:] = _in_turn(items)
    for item in items:
        if any(map(item.get_closest_marker, _ON_REQUEST)):
            item.add_marker(pytest.mark.timeout(0))
    if config.option.fast:
        _leave_out(config, items, [item for item in items if _folder(item) not in _FAST])
    if config.option.markexpr:
        return
    long = [item for item in items if any(map(item.get_closest_marker, _ON_REQUEST))]
    _leave_out(config, items, long)


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]
) -> None:
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _folder(item: pytest.Item | pytest.FixtureRequest) -> str:
    """The directory of ``tests/`` that it is of; empty for one beside this file."""
    return "/".join(item.path.relative_to(Path(__file__).parent).parts[:-1]).partition("/")[0]


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


@pytest.fixture(scope="module", autouse=True)
def environment(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each file begins with the same environment, whatever the libraries of the one before have set."""
    before = dict(os.environ)
    yield
    for name in {*before, *os.environ}:
        if name.startswith(_OF_THE_RUN) or os.environ.get(name) == before.get(name):
            continue
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.fixture(scope="module", autouse=True)
def frozen(request: pytest.FixtureRequest) -> Iterator[None]:
    """Trials and cleared sessions collect garbage: they need not search the libraries for any."""
    if _folder(request) not in _TRAIN_HERE:
        yield
        return
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def links() -> Iterator[None]:
    """No file leaves a thread that would end the process of tests once its pipe's other end is gone."""
    yield
    left = [each for each in threading.enumerate() if each.name.startswith("sweeper-link")]
    for each in left:
        each.join(5)
    assert not [each for each in left if each.is_alive()], (
        "a link of this file's tests still listens"
    )


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


@pytest.fixture(scope="session")
def forked_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """What Python is to run for a warm server that need not import TensorFlow itself."""
    from shared_imports import shared_imports

    with shared_imports(tmp_path_factory.mktemp("imports"), _ENVIRONMENT) as program:
        yield program


@pytest.fixture(scope="module", autouse=True)
def servers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Warm servers are forked from one process, except where ``REAL_SERVERS`` stands in the file.

    For a file's own fixtures, too, which are older than its tests.
    """
    if _folder(request) not in _START_SERVERS or getattr(request.module, "REAL_SERVERS", False):
        yield
        return
    from sweeper.execution.launch import server_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "_SERVER", request.getfixturevalue("forked_servers"))
        yield
