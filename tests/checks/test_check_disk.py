"""The disk of a check: what was there is there, byte by byte, whatever its trials do and wherever it is killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from disk_contents import contents
from sweeps import command

from sweeper.checks import disk
from sweeper.checks.disk import Disk
from sweeper.files.recorder import RECORDER, install
from sweeper.run.launch.server_process import LOCKS
from sweeper.run.trial.keeping import Keeper, keep_for_check
from sweeper.support import paths

DIED = 9


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Give a directory with files of the user's."""
    directory = Path(os.path.realpath(tmp_path)) / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    paths.nobodys.cache_clear()
    install()
    RECORDER.active = False
    for number in range(9):
        Path(f"user{number}").write_text(f"content {number}\n" * 3)
    for path in ("tree/sub", "tree/empty", "empty"):
        Path(path).mkdir(parents=True)
    Path("tree/a").write_text("a")
    Path("tree/sub/b").write_text("b")
    Path("link").symlink_to("user1")
    yield directory
    RECORDER.active = False


def everything():
    """Do to files what a trial can do to them, by Python's functions."""
    Path("user1").unlink()
    Path("user2").write_text("gone")
    with Path("user3").open("a") as file:
        file.write("more")
    Path("user4").rename("renamed")
    with Path("renamed").open("a") as file:
        file.write("more")
    shutil.rmtree("tree")
    Path("tree/new").mkdir(parents=True)
    Path("tree/new/file").write_text("new")
    with Path("user7").open("r+b") as file:
        file.write(b"Z")
    Path("empty").rmdir()
    Path("link").unlink()
    Path("hard").hardlink_to("user6")
    with Path("hard").open("a") as file:
        file.write("more")
    Path("temporary").write_text("new")
    Path("temporary").replace("user5")
    os.truncate("user6", 3)


def unseen():
    """Change files by another program, which nobody announces."""
    subprocess.run(
        "echo y >> user8; echo y > made; mkdir -p new; echo y > new/y", shell=True, check=True
    )


def train(*acts):
    """Act as a trial of a check."""
    RECORDER.__init__()
    RECORDER.begin([])
    keep_for_check(names=True)
    try:
        for act in acts:
            act()
    finally:
        RECORDER.active = False


def check(directory, *acts, trainings=2, notify=lambda _: None):
    """Train several times as a check does, and return its disk."""
    with Disk([str(directory)], notify) as checked:
        checked.imported()
        for _ in range(trainings):
            train(*acts)
            checked.undo()
    return checked


def test_what_trials_do_to_files_that_were_there_is_undone_and_what_they_made_is_removed(here):
    originals = contents(here)
    checked = check(here, everything, unseen)
    assert contents(here) == originals
    assert {"hard", "made", "new"} <= set(checked.removed)
    assert checked.notes == []


def test_what_cannot_be_undone_is_named(here, monkeypatch):
    """Without copies, what another program changes in place; what Python changes is undone without them."""
    monkeypatch.setattr(disk, "_MOST_BYTES", 0)
    originals = contents(here)
    notes = check(here, everything, unseen).notes
    assert notes == [f"{here}/user8 was changed while trials ran, by them or by another process"]
    after = contents(here)
    assert after.pop("user8") != originals.pop("user8")
    assert after == originals


def test_without_the_keeper_files_are_changed(here, monkeypatch):
    """The control: nothing else puts back what was there."""
    monkeypatch.setattr(disk, "_MOST_BYTES", 0)
    monkeypatch.setattr(Keeper, "_first", lambda *_: None)
    originals = contents(here)
    check(here, lambda: Path("user2").write_text("gone"))
    assert contents(here) != originals


@pytest.mark.parametrize("line", range(1, 24))
def test_a_check_that_dies_at_any_line_of_its_journal_loses_and_changes_nothing(
    line, here, monkeypatch
):
    originals = contents(here)
    note = Keeper._note
    entries = []

    def die(self, **entry):
        note(self, **entry)
        entries.append(entry)
        if len(entries) == line:
            os._exit(DIED)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(Keeper, "_note", die)
            check(here, everything, unseen)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED
    assert contents(here) != originals
    messages = []
    assert check(here, unseen, notify=messages.append).notes == []
    assert contents(here) == originals
    assert all(message.startswith("of a check that was killed") for message in messages)


def test_what_another_process_makes_or_changes_meanwhile_is_left_and_named(here):
    """It makes a file once; a trial, in each of its trainings."""
    acts = [unseen, lambda: None]

    def once():
        acts.pop(0)()

    checked = check(here, once)
    assert Path("made").read_text() == "y\n"
    assert Path("new/y").read_text() == "y\n"
    assert Path("user8").read_text() == "content 8\n" * 3
    assert Path("user8.by-check-1").read_text() == "content 8\n" * 3 + "y\n"
    assert checked.removed == []
    assert "made, new appeared while trials ran" in checked.notes[0]
    assert "user8.by-check-1" in checked.notes[1]


def test_what_the_user_writes_after_a_check_was_killed_is_not_undone(here):
    child = os.fork()
    if child == 0:
        with Disk([str(here)]) as checked:
            checked.imported()
            train(everything)
            os._exit(DIED)
    os.waitpid(child, 0)
    later = time.time() + 60
    for name in ("user3", "hard", "user8"):
        Path(name).write_text("mine")
        os.utime(name, (later, later))
    messages = []
    check(here, trainings=0, notify=messages.append)
    assert [Path(name).read_text() for name in ("user3", "hard", "user8")] == ["mine"] * 3
    [original] = here.glob("user3.before-check-*")
    assert original.read_text() == "content 3\n" * 3
    assert Path("user2").read_text() == "content 2\n" * 3
    assert any("user3" in message for message in messages)


def test_what_a_run_makes_after_a_check_was_killed_is_no_file_of_that_check(here):
    """The next check's trials make files of the same names, by another program: twice, as a trial's own."""
    child = os.fork()
    if child == 0:
        with Disk([str(here)]) as checked:
            checked.imported()
            os._exit(DIED)
    os.waitpid(child, 0)
    unseen()
    Path("made").write_text("by a run")
    later = time.time() + 60
    for path in ("made", "new", "new/y"):
        os.utime(path, (later, later))
    checked = check(here, lambda: subprocess.run("echo y > made2", shell=True, check=True))
    assert Path("made").read_text() == "by a run"
    assert Path("new/y").read_text() == "y\n"
    assert checked.removed == ["made2"]


WRITER = """
import os, sys, time
from pathlib import Path

stop, report, number = Path(sys.argv[1]), Path(sys.argv[2]), 0
while not stop.exists():
    with Path("other.log").open("a") as log:
        log.write(f"{number}\\n")
        log.flush()
        os.fsync(log.fileno())
    Path(f"epoch-{number}").write_text("checkpoint")
    if number and not Path(f"epoch-{number - 1}").exists():
        report.write_text(f"epoch-{number - 1} is gone")
    number += 1
    time.sleep(0.05)
report.write_text(report.read_text() if report.exists() else f"wrote {number}")
"""


@pytest.fixture
def other_process(here, tmp_path):
    """Start a process of nobody's that writes to a log and makes files, and yield a function that ends it."""
    stop, report = tmp_path / "stop", tmp_path / "report"
    (tmp_path / "writer.py").write_text(WRITER)
    start = f"{sys.executable} {tmp_path}/writer.py {stop} {report} &"
    subprocess.run(start, shell=True, check=True, cwd=here)
    while not Path("epoch-1").exists():
        time.sleep(0.05)

    def end():
        stop.write_text("")
        while not report.exists() or not report.read_text():
            time.sleep(0.05)
        return report.read_text()

    yield end
    stop.write_text("")


def test_files_of_another_process_at_work_are_left_where_they_are(here, other_process):
    checked = check(here, everything, unseen, lambda: time.sleep(0.5))
    report = other_process()
    assert report.startswith("wrote "), report
    count = int(report.split()[1])
    assert Path("other.log").read_text() == "".join(f"{n}\n" for n in range(count))
    assert all(Path(f"epoch-{n}").exists() for n in range(count))
    assert Path("user2").read_text() == "content 2\n" * 3, (
        "what Python changes is undone nevertheless"
    )
    assert Path("user8").read_text().startswith("content 8\n" * 3)
    assert any("another process (" in note for note in checked.notes)
    assert not {f"epoch-{n}" for n in range(count)} & set(checked.removed)


def test_without_a_look_for_other_processes_their_files_are_moved(here, other_process, monkeypatch):
    """The control: a walk alone takes them for a trial's."""
    monkeypatch.setattr(disk, "written_bytes", lambda *_: {})
    check(here, lambda: time.sleep(0.5))
    assert other_process().endswith("is gone")


@pytest.mark.parametrize("inherits", [True, False], ids=["with the lock", "control: without"])
def test_the_next_check_waits_for_the_processes_of_one_that_was_killed(here, inherits):
    child = os.fork()
    if child == 0:
        with Disk([str(here)]) as checked:
            checked.imported()
            subprocess.Popen(
                "sleep 1; touch ../ended", shell=True, pass_fds=LOCKS if inherits else ()
            )
            os._exit(DIED)
    os.waitpid(child, 0)
    messages = []
    ended = []
    check(
        here, lambda: ended.append(Path("../ended").exists()), trainings=1, notify=messages.append
    )
    assert ended == [inherits]
    assert (f"waiting for another check in {here}" in messages) == inherits


def test_a_run_puts_back_what_a_check_that_was_killed_has_set_aside(users):
    """It reads the file that the check's trial replaced, and not what that trial wrote to it."""
    file = write(users, "reading", READING)
    child = os.fork()
    if child == 0:
        os.chdir(users)
        with Disk([os.path.realpath(users)]) as checked:
            checked.imported()
            install()
            train(lambda: Path("weights.txt").write_text("by a trial"))
            os._exit(DIED)
    os.waitpid(child, 0)
    assert (users / "weights.txt").read_text() == "by a trial"
    ended = command("run", file, "--trials", 1, cwd=users)
    assert ended.code == 0, ended.out + ended.err
    assert "of a check that was killed, put back: weights.txt" in ended.err
    assert (users / "weights.txt").read_text() == "what was in weights.txt\n"
    assert not (users / ".sweeper-aside").exists()


def test_what_the_import_makes_stays_and_what_it_changes_is_undone_at_the_end(here):
    originals = contents(here)
    with Disk([str(here)]) as checked:
        RECORDER.__init__()
        RECORDER.begin([])
        keep_for_check(names=False)
        Path("made").write_text("by the import")
        Path("user3").write_text("prepared by the import")
        RECORDER.active = False
        checked.imported()
        for _ in range(2):
            train(lambda: Path("user3").read_text() == "prepared by the import" or 1 / 0)
            train(lambda: Path("made").write_text("by a trial"))
            checked.undo()
    after = contents(here)
    assert after.pop("made")[0] == b"by the import"
    assert after == originals
    assert checked.removed == []


def test_downloads_and_caches_stay_and_are_nobodys(here, monkeypatch, tmp_path):
    for number, name in enumerate(paths._DOWNLOADS):
        monkeypatch.setenv(name, str(tmp_path / f"cache-{number}"))
        (tmp_path / f"cache-{number}").mkdir()
    paths.nobodys.cache_clear()

    def download():
        for number in range(len(paths._DOWNLOADS)):
            file = tmp_path / f"cache-{number}" / "data"
            assert number == len(paths._DOWNLOADS) - 1 or not file.exists() or downloads
            file.write_text("data")
        downloads.append(1)

    downloads = []
    checked = check(here, download)
    assert checked.removed == []
    assert len(list(tmp_path.glob("cache-*/data"))) == len(paths._DOWNLOADS)


def test_what_is_set_aside_is_private_and_comes_back_with_its_mode(here):
    Path("user8").chmod(0o600)
    Path("user2").chmod(0o640)
    modes = []

    def look():
        modes.append(Path(".sweeper-aside").stat().st_mode & 0o777)

    check(here, unseen, everything, look)
    assert modes == [0o700, 0o700]
    assert [Path(n).stat().st_mode & 0o777 for n in ("user8", "user2")] == [0o600, 0o640]


def test_two_checks_in_one_directory_wait_for_each_other(here):
    with Disk([str(here)]):
        program = (
            "from sweeper.checks.disk import Disk; import sys\n"
            f"with Disk([{str(here)!r}], lambda text: print(text, flush=True)): print('in')"
        )
        other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == f"waiting for another check in {here}\n"
        assert other.poll() is None
    assert other.communicate(timeout=60)[0] == "in\n"


HEAD = """
import os, subprocess
import keras, numpy as np, tensorflow as tf
from sweeper import Data, Study

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
with open("import.log", "a") as log:
    log.write("imported\\n")

def build(trial):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(trial.suggest_float("lr", 1e-3, 1e-1, log=True)), "mse")
    return model

def data(trial):
    scale = trial.suggest_categorical("scale", [0.1, 1.0])
"""
TAIL = """
    return Data(train=(x, x.sum(1)), validation_split=0.3, batch_size=16)

study = Study(name="{name}", model=build, data=data, objective="val_loss", epochs=2, trials=4)
"""
HARMLESS = """
    with open("calls.log", "a") as log:
        log.write("called\\n")
    subprocess.run("echo called >> shell.log", shell=True)
    tf.io.write_file("existing.bin", "over")
    tf.summary.create_file_writer("logs").close()
    open("weights.txt", "w").write(str(scale))
    x = X * scale
"""
READING = """
    assert open("weights.txt").read().startswith("what was in")
    x = X * scale
"""
SAVED = """
    if not os.path.exists("saved"):
        tf.data.Dataset.from_tensor_slices(X * scale).save("saved")
    x = np.stack(list(tf.data.Dataset.load("saved").as_numpy_iterator()))
"""


def write(directory, name, body):
    file = directory / f"{name}.py"
    file.write_text(HEAD + body + TAIL.format(name=name))
    return file


@pytest.fixture
def users(tmp_path):
    """Give a directory with files that the studies append to and overwrite."""
    for name in ("calls.log", "shell.log", "import.log", "existing.bin", "weights.txt"):
        (tmp_path / name).write_text(f"what was in {name}\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.out.tfevents.1").write_text("an earlier run")
    return tmp_path


def test_a_check_of_a_study_that_writes_leaves_the_disk_and_is_silent(users):
    file = write(users, "harmless", HARMLESS)
    originals = contents(users)
    ended = command("check", file, cwd=users)
    assert ended.code == 0, ended.out + ended.err
    assert "[files]" not in ended.out
    assert contents(users) == originals


def test_a_saved_data_set_that_the_next_trial_loads_is_named_with_what_differs(users):
    file = write(users, "saving", SAVED)
    originals = contents(users)
    ended = command("check", file, cwd=users)
    assert ended.code == 4, ended.out + ended.err
    out = " ".join(ended.out.split())
    assert "depends on what trial 0 left in saved/" in out
    assert "removed saved/: made by the check's trials" in out
    assert contents(users) == originals


@pytest.mark.parametrize(
    "moments", [pytest.param(10, marks=pytest.mark.whole), 1], ids=["ten moments", "one"]
)
def test_a_check_that_is_killed_and_checked_again_loses_and_changes_nothing(moments, users):
    file = write(users, "killed", HARMLESS + SAVED)
    originals = contents(users)
    began = time.monotonic()
    assert command("check", file, cwd=users).code == 4
    seconds = time.monotonic() - began
    assert contents(users) == originals
    for moment in range(moments):
        program = [sys.executable, "-m", "sweeper", "check", str(file)]
        with subprocess.Popen(program, cwd=users, stderr=subprocess.DEVNULL) as killed:
            time.sleep(seconds * (0.6 if moments == 1 else (moment + 1) / (moments + 1)))
            killed.send_signal(signal.SIGKILL)
        repeated = command("check", file, cwd=users)
        assert repeated.code == 4, repeated.out + repeated.err
        assert contents(users) == originals, f"killed at moment {moment}: {repeated.out}"


ROOT = Path(__file__).parents[2]
OURS = [
    *ROOT.glob("studies/*.py"),
    *ROOT.glob("examples/*.py"),
    *ROOT.glob("tests/corpus/pitfalls/*/*.py"),
]


@pytest.mark.whole
@pytest.mark.parametrize("file", sorted(OURS), ids=lambda file: file.stem)
def test_no_check_of_a_study_kept_here_loses_or_changes_a_file(file, users):
    """Whether the study holds or not; killed in the middle, and then to its end."""
    for source in (file, ROOT / "tests/harness/small_study.py"):
        shutil.copy(source, users)
    originals = contents(users)
    program = [sys.executable, "-m", "sweeper", "check", file.name]
    with subprocess.Popen(program, cwd=users, stderr=subprocess.DEVNULL) as killed:
        time.sleep(8)
        killed.send_signal(signal.SIGKILL)
    command("check", file.name, cwd=users)
    after = contents(users)
    assert originals.items() <= after.items()
    assert ".sweeper-aside" not in after
