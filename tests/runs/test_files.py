"""Trials that meet in a file: found by the rules, by `run` and by `check`; harmless files go without a word."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from disk_contents import contents
from file_cases import CASES, UNANNOUNCED
from study_files import TWO_STEPS, StudyText
from sweeps import command, sweep
from tensorflow.python.lib.io import file_io

from sweeper.checks.disk import Disk
from sweeper.errors import IndependenceError
from sweeper.files import walk
from sweeper.files.recorder import MOST, RECORDER, install
from sweeper.files.uses import (
    FileUse,
    TrialUses,
    in_a_run,
    uses_from_json,
    uses_to_json,
)
from sweeper.run.trial.keeping import keep_for_check
from sweeper.run.worker.left_files import left_behind, without_own_output
from sweeper.support.paths import nobodys


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Give an empty current directory and a recorder that has seen nothing."""
    nobodys.cache_clear()
    monkeypatch.chdir(tmp_path)
    install()
    RECORDER.__init__()  # the hook knows this object
    yield tmp_path
    RECORDER.active = False


def trial(number, act):
    """The uses of a trial that does no more than ``act``, as they arrive at the worker."""
    RECORDER.__init__()
    RECORDER.begin([])
    keep_for_check(names=True)
    try:
        RECORDER.look([os.path.realpath(Path.cwd())])
        act()
        sent = json.loads(json.dumps(uses_to_json(RECORDER.uses(ended=True))))
    finally:
        RECORDER.active = False
    return TrialUses(f"trial {number}", uses_from_json(sent))


def value(case, scale):
    """What the factory of a trial returns, as it is compared."""
    values = []
    trial(0, lambda: values.append(np.array(CASES[case](scale)).tolist()))
    return values


def checked(case, scales):
    """What trial 0 left, and the second trial's value with it, and without, as `check` trains them."""
    with Disk([os.path.realpath(Path.cwd())]) as disk:
        disk.imported()
        value(case, scales[0])
        paths = disk.left()
        beside = value(case, scales[1])
        disk.undo()
        alone = value(case, scales[1])
    assert disk.notes == []
    return paths, beside, alone


IN_BOTH = {"statistics", "database", "hdf5", "saved_dataset", "in_a_graph", "shell", "replaced"}
"""The cases of the default tier; others differ in the library that writes."""


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.whole] * (c not in IN_BOTH)) for c in CASES]
)
def test_content_that_one_trial_decides_for_the_next_is_found_by_check_and_told_by_a_run(
    case, here, monkeypatch
):
    def apart(name):
        (here / name).mkdir()
        monkeypatch.chdir(here / name)
        return here / name

    for name, scales in (("other", (1.0, 2.0)), ("same", (1.0, 1.0))):
        directory = apart(name)
        paths, beside, alone = checked(case, scales)
        assert paths
        assert (beside == alone) == (name == "same"), name
        assert contents(directory) == {}, "what the trials made is gone"
    apart("run")
    first = trial(0, lambda: CASES[case](1.0))
    second = trial(1, lambda: CASES[case](2.0))
    findings = list(in_a_run(second, [first]))
    assert {finding.level for finding in findings} <= {"warning", "error"}
    assert findings or case in UNANNOUNCED
    assert all(
        "trial 0" in finding.message and "trial 1" in finding.message for finding in findings
    )
    assert list(in_a_run(first, [])) == [], "the first trial depends on nobody"
    [notice] = left_behind(first)
    assert "while trial 0 ran" in notice.message or "trial 0 left" in notice.message
    assert list(left_behind(trial(2, lambda: None))) == [], (
        "a trial that does nothing leaves nothing"
    )


@pytest.mark.parametrize("case", ["records", "in_a_graph", "shell", "saved_dataset"])
@pytest.mark.parametrize("walks", [True, False], ids=["with the walk", "without it"])
def test_without_the_walk_what_nobody_announces_is_silent_again(case, walks, here, monkeypatch):
    # Of a saved data set one file is written by TensorFlow's Python, which the recorder observes for the line.
    monkeypatch.setattr(file_io.FileIO, "__init__", file_io.FileIO.__init__.__wrapped__)
    if walks:
        paths, beside, alone = checked(case, (1.0, 2.0))
        assert paths
        assert beside != alone
        return
    monkeypatch.setattr(walk.Listing, "add", lambda *_, **__: None)
    paths, _, _ = checked(case, (1.0, 2.0))
    assert paths == set()
    assert list(left_behind(trial(0, lambda: CASES[case](1.0)))) == []


def test_what_the_worker_prints_and_stores_meanwhile_is_no_file_of_the_trial(here):
    output, database, own = here / "run.log", here / "s.db", here / "own.txt"
    for file in (output, database):
        file.write_text("")

    echoes = f"echo x >> {output}; echo x > {database}; echo x > {own}"
    with output.open("a"):
        sent = uses_to_json(trial(0, lambda: subprocess.run(echoes, shell=True, check=True)).uses)
        stored = uses_from_json(without_own_output(sent, str(database)))
    left = {Path(use["path"]) for use in sent["uses"] if use.get("left")}
    assert left == {output, database, own}
    assert [Path(use.path) for use in stored if use.left] == [own]


def test_a_picture_that_each_trial_draws_is_overwritten_and_not_read(here):
    """As Keras's example of a GAN does; Pillow looks whether the file exists before it writes."""

    def draw(number):
        picture = keras.utils.array_to_img(np.full((2, 2, 1), number), scale=False)
        return trial(number, lambda: picture.save("generated.png"))

    first = draw(0)
    [note] = in_a_run(draw(1), [first])
    assert note.level == "note"


def test_a_log_that_each_trial_appends_to_is_not_read(here):
    """Keras's CSVLogger reads the first bytes of the file, to know whether it has a header."""

    def log():
        logger = keras.callbacks.CSVLogger("log.csv", append=True)
        logger.set_model(keras.Sequential())
        logger.on_train_begin()
        logger.on_epoch_end(0, {"loss": 1.0})
        logger.on_train_end()

    first = trial(0, log)
    assert list(in_a_run(trial(1, log), [first])) == [], "what both add is there"

    [warning] = in_a_run(trial(1, lambda: Path("log.csv").read_text()), [first])
    assert warning.level == "warning", "the control: another reader may depend on it"


def test_a_wrong_call_gets_the_functions_own_error_and_a_fault_of_the_recorder_is_not_hidden(
    here, monkeypatch
):
    RECORDER.begin([])
    with pytest.raises(TypeError, match=r"^stat\(\) missing required argument 'path'"):
        os.stat()

    def faulty(*_):
        raise TypeError("a fault of ours")

    monkeypatch.setattr(RECORDER, "used", faulty)
    with pytest.raises(TypeError, match="a fault of ours"):
        here.stat()


def test_files_of_before_are_inputs_and_their_change_is_noted_once_it_is_one(here):
    csv = Path("train.csv")
    csv.write_text("1,2\n")
    earlier = trial(3, csv.read_text)
    os.utime(csv, ns=(1, 1))
    assert list(in_a_run(trial(4, csv.read_text), [earlier])) == [], (
        "another time, the same content"
    )
    csv.write_text("1,2\n3,4\n")
    [note] = in_a_run(trial(4, csv.read_text), [earlier])
    assert note.level == "note"
    assert "train.csv changed since trial 3 ran" in note.message


def test_an_earlier_attempt_at_the_trial_is_no_other_trial(here):
    earlier, later = (trial(0, lambda: CASES["statistics"](1.0)) for _ in range(2))
    assert list(in_a_run(later, [earlier])) == []
    [warning] = in_a_run(replace(later, who="trial 1"), [earlier])
    assert warning.level == "warning", "the control: of another trial it is one"


def test_own_files_libraries_and_code_are_nobodys(here):
    RECORDER.begin([here / "own"])
    (here / "own").mkdir()
    (here / "own" / "log.csv").write_text("mine")
    (here / "module.py").write_text("x = 1")
    Path(os.__file__).read_text()
    Path("/proc/self/stat").read_text()
    assert RECORDER.uses() == ()


def test_a_tree_with_links_is_copied_while_files_are_recorded(here):
    (here / "tree").mkdir()
    (here / "tree" / "file").write_text("1")
    (here / "tree" / "link").symlink_to("file")
    RECORDER.begin([])
    shutil.copytree("tree", "copy", symlinks=True)
    assert (here / "copy" / "link").is_symlink()
    assert os.stat in os.supports_follow_symlinks


def test_only_so_many_files_are_recorded(here):
    RECORDER.begin([])
    for number in range(MOST + 7):
        (here / str(number)).write_text("")
    assert len(RECORDER.uses()) == MOST


def _with_open(value):
    with open("start", "w") as file:  # noqa: PTH123 - as scripts do it
        file.write(str(value))


def _with_hdf5(value):
    with h5py.File("start", "w") as file:
        file["x"] = np.full(4, value)


def _with_tensorflow(value):
    with tf.io.gfile.GFile("start", "w") as file:
        file.write(str(value))


def _by_renaming(value):
    Path("start.tmp").write_text(str(value))
    Path("start.tmp").replace("start")


def met(write, value):
    """Findings about trial 1, which writes 1.0 and reads it after another trial has written ``value``."""
    RECORDER.__init__()
    RECORDER.begin([])
    write(1.0)
    RECORDER.active = False
    write(value)
    RECORDER.active = True
    Path("start").read_bytes()
    if write is _with_hdf5:
        h5py.File("start").close()
    uses = RECORDER.uses(ended=True)
    other = FileUse(str(Path("start").resolve()), wrote=True, wrote_at="`top` study.py:7")
    return list(in_a_run(TrialUses("trial 1", uses), [TrialUses("trial 0", (other,))]))


@pytest.mark.parametrize("write", [_with_open, _with_hdf5, _with_tensorflow, _by_renaming])
def test_a_trial_that_reads_another_ones_content_in_its_own_file_is_not_independent(write, here):
    assert met(write, 1.0) == [], "the same bytes are harmless"
    [error] = met(write, 2.0)
    assert error.level == "error"
    assert "trial 1 is not independent: `met` test_files.py:" in error.message
    assert "uses start, which trial 0 wrote (`top` study.py:7)" in error.message
    assert "in a factory, write it below `trial.directory`" in error.message


def test_a_trial_whose_file_changed_is_named_once_its_writer_has_reported(here):
    path = str(here / "start")
    reader = TrialUses("trial 0", (FileUse(path, wrote=True, changed=True),))
    [warning] = in_a_run(reader, [])
    assert (warning.level, "another process" in warning.message) == ("warning", True)
    writer = TrialUses("trial 1", (FileUse(path, wrote=True, wrote_at="`top` study.py:7"),))
    [error] = in_a_run(writer, [reader])
    assert error.level == "error"
    assert "trial 0 is not independent" in error.message
    assert "which trial 1 wrote (`top` study.py:7)" in error.message
    retried = TrialUses("trial 0", (FileUse(path, wrote=True),))
    assert list(in_a_run(writer, [reader, retried])) == [], "its next attempt ran alone"


def test_what_the_trial_itself_changes_is_its_own(here):
    """Mapped into memory, written again, appended to, and read while it is open."""
    RECORDER.begin([])
    mapped = np.memmap("mapped", "float32", "w+", shape=(8,))
    mapped[:] = 3
    mapped.flush()
    assert np.memmap("mapped", "float32", "r")[0] == 3
    for value in (1.0, 2.0):
        _with_open(value)
        assert Path("start").read_text() == str(value)
    with Path("start").open("a") as file:
        file.write("more")
        file.flush()
        assert Path("start").read_text() == "2.0more"
    assert not any(use.changed for use in RECORDER.uses())


_CALLBACK = "keras.callbacks.CSVLogger({file})"


def study(name, *, callbacks="", before="", built=""):
    """A study of a layer; ``before`` it is made, and once it is ``built``, its factory does more."""
    return StudyText(
        name=name,
        head="import os",
        model=f"{before}\nmodel = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])\n"
        f"{built}\nmodel.compile('sgd', 'mse', run_eagerly=True)\nreturn model",
        data=TWO_STEPS,
        callbacks=callbacks,
        arguments='objective="loss", epochs=2, trials=2, sampler="random", audit="off"',
    )


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Give a function that runs a study in the current directory."""
    monkeypatch.chdir(tmp_path)

    def run(text, workers=1, **options):
        return sweep(
            text.write(Path(f"{text.name}.py")), tmp_path / "runs", workers=workers, **options
        )

    return run


def test_a_run_stops_at_the_trial_that_goes_on_with_another_ones_weights(run):
    text = study(
        "weights",
        built="if os.path.exists('best.weights.h5'): model.load_weights('best.weights.h5')",
        callbacks="keras.callbacks.ModelCheckpoint('best.weights.h5', save_weights_only=True)",
    )
    with pytest.raises(
        IndependenceError, match=r"trial 1 .*best\.weights\.h5, which trial 0 wrote"
    ):
        run(text)


_AT_THE_TOP = """import os, pathlib, time
import tensorflow as tf
tf.constant(1)  # so that each trial's process imports this file
pathlib.Path("start.txt").write_text({content})
pathlib.Path(f"imported-{{os.getpid()}}").write_text("")
def wait():
    while len(list(pathlib.Path().glob("imported-*"))) < 3:  # the server and two trials
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "content", ["str(os.getpid())", pytest.param("'the same'", marks=pytest.mark.whole)]
)
def test_trials_at_once_that_write_one_file_at_the_top_never_read_each_others(content, run):
    text = study("top", before="wait()\npathlib.Path('start.txt').read_text()")
    text = replace(text, head=_AT_THE_TOP.format(content=content))
    if content == "'the same'":
        assert [trial.state for trial in run(text, workers=2).trials] == ["complete", "complete"]
        return
    with pytest.raises(
        IndependenceError, match=r"top\.py:\d+ uses start\.txt, which trial \d wrote"
    ):
        run(text, workers=2)


def test_two_trials_that_write_one_log_are_told_of_the_trials_directory_once(run):
    def advised(swept):
        return [message for message in swept.notices if "trial.directory" in message]

    shared = study("shared-log", callbacks=_CALLBACK.format(file="'log.csv'"))
    assert len(advised(run(shared, trials=3))) == 1
    swept = run(study("own-log", callbacks=_CALLBACK.format(file="trial.directory / 'log.csv'")))
    assert advised(swept) == []
    assert swept.trials[0].files == {"read": [], "written": [], "notices": []}


def test_what_a_trial_read_and_wrote_and_what_was_noticed_is_stored_and_shown(run, tmp_path):
    """An input that changes between two trials: each ranks, and the second one's record says it."""
    (tmp_path / "train.csv").write_text("1")
    text = study(
        "changing",
        before="open('train.csv').read()",
        callbacks=_CALLBACK.format(file="f'log-{trial.number}.csv'"),
    )
    run(text, trials=1)
    (tmp_path / "train.csv").write_text("1, and more")
    swept = run(text, trials=2)
    files = json.loads(command("show", "changing", 0, "--json", cwd=tmp_path).out)["files"]
    assert [Path(file["path"]).name for file in files["read"]] == ["train.csv"]
    assert [Path(file["path"]).name for file in files["written"]] == ["log-0.csv"]
    assert all(file["digest"] for use in ("read", "written") for file in files[use])
    assert files["notices"] == [
        (
            "trial 0 left log-0.csv: a later trial can read it, and `sweeper check FILE` tells whether one "
            "depends on it"
        )
    ]
    assert not any("log-1.csv" in notice for notice in swept.trials[1].files["notices"]), (
        "once a study"
    )
    (noticed,) = [notice for notice in swept.trials[1].files["notices"] if "train.csv" in notice]
    assert noticed.startswith("train.csv changed since trial 0 ran")
    ended = command("show", "changing", 1, cwd=tmp_path)
    assert "changed since trial 0" in " ".join(ended.out.split())


def test_a_replay_that_finds_what_its_trial_lacked_gives_no_verdict_on_independence(run, tmp_path):
    text = study(
        "sought",
        before="kept = trial.number == 0 and os.path.exists('seen.txt')\n"
        "open('seen.txt', 'a').write('x')",
    )
    run(text, trials=1)
    verified = command("verify", "sought", "--trial", 0, cwd=tmp_path)
    assert "no verdict on independence: trial 0 looked for" in " ".join(verified.out.split())
