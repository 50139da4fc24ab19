"""The process of the fork server: begun before the rest of a run is imported, with what trials share."""

import ast
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
from sweeper.run.launch.warm_server import execute_all, leading_imports

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


LIBRARIES = {
    "plain_library": "PROCESS = 1",
    "drawing_library": "import random\nrandom.random()",
    "numpy_drawing_library": "import numpy\nnumpy.random.rand()",
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Libraries that are importable here, and are not beside the study."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    for name, text in LIBRARIES.items():
        (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(directory))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Text."""\nfrom __future__ import annotations\nimport json, keras as k\nx = 1', 3),
        ("from plain_library import PROCESS\nimport colorsys", 2),
        ('import os\nos.environ["KERAS_BACKEND"] = "tensorflow"\nimport keras', 3),
        ('import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport keras', 1),
        ('import os\nos.environ["KERAS_BACKEND"] = chosen()\nimport keras', 1),
        ("import json\nimport random; random.seed(1)\nimport plain_library", 2),
        ("import json\nimport mine\nimport plain_library", 1),
        ("import json\nimport html.entities\nimport wave", 1),
        ("import json\nfrom . import mine\nimport plain_library", 1),
        ("import json\nimport no_such_module\nimport plain_library", 1),
        ("import json\ntry:\n    import keras\nexcept ImportError:\n    pass", 1),
        ("import json\nimport (", 0),
    ],
)
@pytest.mark.usefixtures("installed")
def test_only_what_stands_before_the_file_does_anything_is_imported_ahead(tmp_path, text, expected):
    (tmp_path / "mine.py").write_text("")
    if "html" in text:
        # The file finds its own, which has the name of a part of Python.
        (tmp_path / "wave.py").write_text("")
        expected = 2
    steps = [] if expected == 0 else ast.parse(text).body[:expected]
    file = tmp_path / "study.py"
    file.write_text(text)
    leading = leading_imports(target_source(str(file)))
    assert list(map(ast.unparse, leading)) == list(map(ast.unparse, steps))


@pytest.mark.parametrize(
    ("library", "unfit"),
    [
        ("plain_library", 0),
        ("drawing_library", 2),
        ("numpy_drawing_library", 2),
        ("no_such_module", 2),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_library_that_draws_or_fails_is_left_to_the_trials(library, unfit):
    steps = ast.parse(f"import json\nimport {library}\nimport wave").body
    assert execute_all(steps, lambda: True) == unfit
    assert execute_all(steps, lambda: False) == 1, "the control"
