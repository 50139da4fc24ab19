"""The servers that tests fork from one process are as good as real ones, and used where they may be."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from shared_imports import ADDRESS, shared_imports

from sweeper.execution.launch.launchers import WarmServer
from sweeper.execution.launch.sources import target_source

STUDY = Path(__file__).parents[2] / "benchmarks" / "noop_study.py"


def program_of(server: WarmServer) -> list[str]:
    return psutil.Process(server._process.pid).cmdline()


def test_a_server_is_forked_where_its_environment_is_the_same(tmp_path: Path) -> None:
    server = WarmServer(target_source(str(STUDY)))
    assert server.loaded().settings.name
    assert any(word.endswith("shared_imports.py") for word in program_of(server))
    server.close()
    assert not server.alive


def test_a_server_whose_environment_is_another_is_a_real_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    server = WarmServer(target_source(str(STUDY)))
    assert server.loaded().settings.name
    assert "sweeper.execution.launch.warm_server" in program_of(server)
    server.close()


def test_a_forked_server_dies_with_its_client() -> None:
    server = WarmServer(target_source(str(STUDY)))
    server.loaded()
    os.kill(server._process.pid, 9)
    assert server._process.wait() == -9
    server._listener.join(20)
    assert not server.alive
    server.close()


def test_another_process_for_a_while_leaves_the_first_where_it_is_found(tmp_path: Path) -> None:
    before = os.environ[ADDRESS]
    with shared_imports(tmp_path, dict(os.environ)):
        assert os.environ[ADDRESS] == str(tmp_path / "imports")
    assert os.environ[ADDRESS] == before
