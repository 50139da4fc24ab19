"""What a trial started is gone before its attempt ends: however it ends, and whoever is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from scripted_trials import assignment_in
from waiting import live, until

from sweeper.run.launch import orphans, server_process
from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.messages import StudySource

SERVER = '''
"""The fork server, whose trials each start a child, a daemon, and a child of the daemon's."""
import json, os, pathlib, signal, subprocess, sys, time
from types import SimpleNamespace
from sweeper.support.processes import adopt_orphans
from sweeper.run.launch import server_process, warm_server
from sweeper.run.protocol.messages import Finished, StoppedHere

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

def trial(channel, assignment, load):
    adopt_orphans()
    reading, writing = os.pipe()
    child = subprocess.Popen(SLEEP)
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            below = subprocess.Popen(SLEEP)
            os.write(writing, b"%d %d" % (os.getpid(), below.pid))
            time.sleep(600)
        os._exit(0)
    pids = [child.pid, *map(int, os.read(reading, 100).split())]
    path = pathlib.Path(assignment.files)
    path.with_suffix(".part").write_text(json.dumps(pids))
    path.with_suffix(".part").rename(path)
    ends = {
        "completes": lambda: channel.send(Finished(step=1, value=0.0, digest="d")),
        "drains": lambda: channel.send(StoppedHere(step=1)),
        "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "exits": lambda: os._exit(3),
    }
    ends.get(assignment.settings.name, lambda: time.sleep(600))()

warm_server.serve_trial = trial
warm_server._import_everything = lambda: None

def load(self, source):
    self._continue_in_child(lambda: True)
    self._definition = SimpleNamespace(strategy=None)

warm_server._Server.load = load
warm_server.main(sys.argv[1:])
'''

ENDS = {
    "completes": ExitStatus(0),
    "drains": ExitStatus(0),
    "crashes": ExitStatus(-signal.SIGSEGV),
    "is killed": ExitStatus(-signal.SIGKILL),
    "exits": ExitStatus(3),
}

pytestmark = pytest.mark.usefixtures("real_servers")


def assignment(fate, directory):
    files = str(directory / f"{fate}.json")
    return assignment_in(directory, name=fate, files=files, checkpoints=())


def family_of(fate, directory):
    file = directory / f"{fate}.json"
    assert until(file.exists)
    return json.loads(file.read_text())


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return file


@pytest.fixture
def server(program, monkeypatch):
    monkeypatch.setattr(server_process, "_SERVER", (str(program),))
    server = WarmServer(StudySource("target", "none.py"))
    yield server
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a process")
def test_however_a_trial_ends_nothing_that_it_started_is_there_when_its_end_is_known(
    server, tmp_path
):
    waiting = server.launch(assignment("waits", tmp_path))
    others = family_of("waits", tmp_path)
    for fate, status in ENDS.items():
        trial = server.launch(assignment(fate, tmp_path))
        ended = trial.wait(20)
        survivors = [pid for pid in family_of(fate, tmp_path) if live(pid)]
        assert (ended, survivors) == (status, []), fate
        trial.channel.close()
    assert all(map(live, others)), "the control: those of a trial that runs are let alone"
    waiting.kill()
    assert waiting.wait(20) == ExitStatus(-signal.SIGKILL)
    assert not any(map(live, others))
    waiting.channel.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills what has lost its parent")
@pytest.mark.parametrize("which", ["parent", "child"])
def test_both_processes_of_a_server_and_its_trials_end_with_either(server, tmp_path, which):
    trial = server.launch(assignment("waits", tmp_path))
    family = family_of("waits", tmp_path)
    parent = server._process.pid
    child = psutil.Process(trial.pid).ppid()
    assert psutil.Process(child).ppid() == parent
    os.kill(parent if which == "parent" else child, signal.SIGKILL)
    assert server._process.wait() == -signal.SIGKILL
    assert until(lambda: not any(map(live, [parent, child, trial.pid])))
    assert trial.wait(20) == ExitStatus(None)
    if which == "child":
        assert not any(map(live, family)), "the parent has killed what the trial left"
    for pid in filter(live, family):
        os.kill(pid, signal.SIGKILL)
    trial.channel.close()


DRIVER = """
import sys, time
from pathlib import Path
from scripted_trials import assignment_in
from sweeper.run.launch import launchers as isolation, server_process
from sweeper.run.protocol.messages import StudySource

if __name__ == "__main__":
    server_process._SERVER = (sys.argv[1],)
    server = isolation.WarmServer(StudySource("target", "none.py"))
    path = Path(sys.argv[2])
    trial = server.launch(assignment_in(path, name="waits", files=str(path / "waits.json")))
    print(server._process.pid, trial.pid, flush=True)
    if sys.argv[3] == "returns":
        while not (path / "waits.json").exists():
            time.sleep(0.02)
        server.close()
    else:
        time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a process")
@pytest.mark.parametrize("ending", ["returns", "is killed while all stand still"])
def test_nothing_that_a_trial_started_outlives_the_driver(program, tmp_path, ending):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(program), str(tmp_path), ending],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    with driver.stdout:
        server, trial = map(int, driver.stdout.readline().split())
    family = family_of("waits", tmp_path)
    if "stand still" in ending:
        for pid in (server, trial, family[0]):
            os.kill(pid, signal.SIGSTOP)
        os.killpg(driver.pid, signal.SIGSTOP)
    if ending != "returns":
        driver.kill()
    driver.wait(20)
    all_of_it = [server, trial, *family]
    gone = until(lambda: not any(map(live, all_of_it)), 10)
    survivors = [pid for pid in all_of_it if live(pid)]
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert gone, survivors


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a process")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.whole)]
)
def test_a_signal_in_the_first_moments_of_a_spawned_trial_is_no_crash(
    tmp_path, monkeypatch, number
):
    """Ctrl-C reaches it while its Python starts, and while it imports TensorFlow."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    importing = stubs / "importing"
    signalled = stubs / "signalled"
    (stubs / "keras.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        f"Path({str(importing)!r}).touch()\n"
        f"while not Path({str(signalled)!r}).exists():\n"
        "    time.sleep(0.01)\n"
    )
    (stubs / "tensorflow.py").write_text("raise ImportError('it was imported to the end')\n")
    launcher = WarmServer(StudySource("target", "none.py"))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{stubs}")
    launcher.choose_isolation(None, "spawn")
    with contextlib.closing(launcher):
        trial = launcher.launch(assignment("spawned", tmp_path))

        def imports_or_has_ended():
            if trial.wait(0) is None:
                os.kill(trial.pid, number)
            return importing.exists() or trial.wait(0) is not None

        assert until(imports_or_has_ended)
        for _ in range(3):
            imports_or_has_ended()
            time.sleep(0.04)
        signalled.touch()
        message = trial.channel.receive(30)
        assert message.fault == "environment", trial.wait(5)
        assert "it was imported to the end" in message.error
        assert trial.wait(20) == ExitStatus(0)
        trial.channel.close()


class SlowToDie:
    """A child that is killed and takes its time; or that is another user's, and never is."""

    def __init__(self, pid, seconds, uid=1000):
        self.pid = pid
        self.uid = uid
        self.gone_at = time.monotonic() + seconds

    def status(self):
        gone = time.monotonic() > self.gone_at
        return psutil.STATUS_ZOMBIE if gone else psutil.STATUS_RUNNING

    def cmdline(self):
        return ["sleep"]

    def uids(self):
        return SimpleNamespace(effective=self.uid)


@pytest.fixture
def looks(monkeypatch):
    """What this process sees as its children, look after look; the last one again and again."""
    children = []
    here = SimpleNamespace(children=lambda: children.pop(0) if len(children) > 1 else children[0])
    monkeypatch.setattr(orphans.psutil, "Process", lambda: here)
    monkeypatch.setattr(orphans, "kill_tree", lambda child: None)
    monkeypatch.setattr(orphans, "_PATIENCE", 0.05)
    monkeypatch.setattr(orphans.os, "geteuid", lambda: 1000)
    return children


def test_what_was_killed_is_waited_for_and_only_what_cannot_be_killed_is_given_up(
    looks, monkeypatch
):
    looks[:] = [[SlowToDie(7, 0.3)]]
    assert orphans.kill_orphans(but=()) == set()
    looks[:] = [[SlowToDie(8, 60, uid=1001)]]
    assert orphans.kill_orphans(but=()) == {8}
    # The control: with no more patience for ours, a slow one would be given up.
    monkeypatch.setattr(orphans, "_PATIENCE_WITH_OURS", 0.05)
    looks[:] = [[SlowToDie(9, 0.5)]]
    assert orphans.kill_orphans(but=()) == {9}


def test_the_children_of_an_orphan_that_has_just_ended_are_killed_too(looks, monkeypatch):
    """They are this process's only after the look in which their parent was seen to have ended."""
    ended = SlowToDie(7, 0)
    below = SlowToDie(8, 60)
    killed = []

    def kill_tree(child):
        killed.append(child.pid)
        child.gone_at = 0.0

    monkeypatch.setattr(orphans, "kill_tree", kill_tree)
    looks[:] = [[ended], [ended, below]]
    assert orphans.kill_orphans(but=()) == set()
    assert killed == [8]
