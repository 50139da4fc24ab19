"""The process of the fork server: begun before the rest of a run is imported, with what trials share."""

import sys
from pathlib import Path

import psutil
import pytest
from forked_programs import WARM_SERVER
from sweeps import python

from sweeper.run.launch import server_process
from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.server_process import ServerProcess, begin_server
from sweeper.run.launch.sources import target_source

PROBE = """
import sys
from sweeper.run.launch import server_process

class Begun(Exception):
    pass

def begin(*, imports=True):
    raise Begun(sorted({name.partition(".")[0] for name in sys.modules}))

server_process.ServerProcess = begin
from sweeper.cli.options import Flags
from sweeper.cli.running import _sweep

try:
    _sweep(Flags(workers=1), source="study.py")
except Begun as begun:
    print(*begun.args[0])
"""

pytestmark = pytest.mark.usefixtures("real_servers")


def test_it_is_begun_before_what_takes_long_is_imported(tmp_path):
    ended = python("-c", PROBE, cwd=tmp_path)
    imported = set(ended.out.split())
    assert "sweeper" in imported, ended.err
    assert not imported & {"numpy", "sqlalchemy", "optuna", "rich", "tensorflow"}
    assert ended.err == "importing TensorFlow and study.py ...\n", "said before it is begun"


LOOK = """
import os, sys
import {module}

heavy = {{"numpy", "keras", "tensorflow", "h5py"}}
print(sorted(heavy & sys.modules.keys()), len(os.listdir("/proc/self/task")))
"""


def heavy_and_threads(module):
    return python("-c", LOOK.format(module=module), cwd=Path()).out.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in Linux's /proc")
def test_one_that_spawns_trials_has_imported_nothing_that_has_threads():
    """It forks, and a signal that came early must meet its one thread, or the held trial's."""
    assert heavy_and_threads("sweeper.run.launch.warm_server") == "[] 1"
    assert heavy_and_threads("sweeper.run.launch.warm_server, numpy") != "[] 1", "the control"


def test_it_serves_the_study_that_it_is_given_later(tmp_path, monkeypatch):
    """A forked one, which waits for it as a real one does that has imported the rest."""
    monkeypatch.setattr(server_process, "_SERVER", WARM_SERVER)
    study = tmp_path / "study.py"
    study.write_text("from nowhere import nothing\n")
    with ServerProcess() as begun:
        server = WarmServer(target_source(str(study)), begun)
        with pytest.raises(Exception, match="nowhere"):
            server.loaded()
        server.close()


def test_one_that_is_not_used_ends_with_the_block_and_inline_trials_need_none():
    with begin_server("auto") as begun:
        process = psutil.Process(begun.pid)
        assert process.is_running()
    assert not process.is_running()
    with begin_server("inline") as begun:
        assert begun is None
