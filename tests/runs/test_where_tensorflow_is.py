"""TensorFlow is imported where trials run, and in no worker or command beside them."""

import sys

import pytest
from forked_programs import WARM_SERVER
from short_trials import PLAIN, UNVALIDATED
from study_files import StudyText
from sweeps import python

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


def test_the_fork_server_is_begun_before_what_takes_long_is_imported(tmp_path):
    (tmp_path / "study.py").touch()
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


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in Linux's /proc")
@pytest.mark.parametrize(("more", "alone"), [("", True), (", numpy", False)])
def test_a_server_that_spawns_trials_has_imported_nothing_that_has_threads(tmp_path, more, alone):
    """It forks, and a signal that came early must meet its one thread, or the held trial's."""
    look = LOOK.format(module=f"sweeper.run.launch.warm_server{more}")
    assert (python("-c", look, cwd=tmp_path).out == "[] 1\n") == alone


VERBS = """
import sys
from sweeper.run.launch import server_process

server_process._SERVER = {server!r}
from sweeper.cli.main import main

def heavy():
    return sorted({{"keras", "tensorflow"}} & sys.modules.keys())

for words in {commands!r}:
    assert main(words) == 0, words
    assert not heavy(), (words, heavy())
sys.path.insert(0, "stand-ins")
import keras
assert heavy() == ["keras", "tensorflow"], "the control"
"""


ONE_STEP = "return Data(train=(x[:8], y[:8]), batch_size=8)"
"""Too short for a check to interrupt; the verb is the same."""


@pytest.mark.whole
def test_no_command_imports_tensorflow_where_the_worker_is(tmp_path):
    """The trials' processes do; beside them it would cost every command seconds, and its memory."""
    alike = 'objective="loss", trials=1, sampler="random", audit="off", '
    for name, data, epochs in (("small", UNVALIDATED, 2), ("brief", ONE_STEP, 1)):
        text = StudyText(name, model=PLAIN, data=data, arguments=f"{alike} epochs={epochs}")
        text.write(tmp_path / f"{name}.py")
    # For the control: the real ones take seconds.
    (tmp_path / "stand-ins").mkdir()
    (tmp_path / "stand-ins" / "keras.py").write_text("import tensorflow")
    (tmp_path / "stand-ins" / "tensorflow.py").touch()
    commands = [
        ["run", "small.py", "--workers", "1"],
        ["extend", "small", "--epochs", "3"],
        ["worker", "small", "--slots", "1"],
        ["verify", "small", "--trial", "0"],
        ["check", "brief.py"],
        ["report", "small", "--output", "report.html"],
        *(["status", "small"], ["show", "small", "0"], ["best", "small"], ["ls"]),
    ]
    ended = python("-c", VERBS.format(server=WARM_SERVER, commands=commands), cwd=tmp_path)
    assert ended.code == 0, ended.err
