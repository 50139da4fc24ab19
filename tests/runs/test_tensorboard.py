"""TensorBoard's files hold every epoch of a trial once, whatever happened to its attempts."""

import math
import shutil
import sys
from pathlib import Path

import pytest
from scripted_trials import never, raise_error, scripted_sweep
from sweeps import python

import sweeper
from sweeper.errors import DefinitionError

pytest.importorskip("tensorboard", reason="pip install 'sweeper-keras[tensorboard]'")


def train(trial, numbers):
    for number in numbers:
        logs = {"loss": 1 / (number + 1), "learning_rate": 0.5**number}
        trial.end_epoch(number, step=10 * (number + 1), **logs)


def killed(trial):
    """Four epochs, of which the checkpoint that is gone on from holds three."""
    trial.suggest("rate")
    trial.begin()
    train(trial, range(4))
    return -9


def resumed(trial):
    """Another file is there, as after a kill between a new one and the end of the old one."""
    directory = Path(trial.assignment.files).parents[1] / "tensorboard" / "trial-00000"
    for file in directory.glob("*.sweeper"):
        shutil.copy(file, file.with_name(FORMER))
    trial.begin(30, 3)
    train(trial, range(3, 6))
    return trial.finish(1 / 6, step=60)


def diverged(trial):
    trial.begin()
    trial.end_epoch(0, step=10, loss=math.nan)
    return raise_error(trial)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    scripts = {(0, 1): killed, (0, 2): resumed, 1: diverged}
    directory = tmp_path_factory.mktemp("tensorboard")
    options = {"trials": 2, "epochs": 6, "tensorboard": True, "audit": "off"}
    with scripted_sweep(directory, scripts, **options) as study_sweep:
        study_sweep.serve()
        yield study_sweep


def read(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def directory_of(sweep, number):
    return sweep.context.study.paths.tensorboard(number)


def points(directory, tag="loss"):
    return [(e.step, round(e.value, 6)) for e in read(directory).Scalars(tag)]


FORMER = "events.out.tfevents.00000000000000000001.sweeper"
WHOLE = [(n, round(1 / (n + 1), 6)) for n in range(6)]


def test_a_killed_and_resumed_trial_has_every_epoch_once(sweep):
    assert sweep.outcomes() == ["crashed", "complete"]
    [file] = directory_of(sweep, 0).iterdir()
    assert points(file.parent) == WHOLE
    assert set(read(file.parent).Tags()["scalars"]) == {"loss", "learning_rate"}


def test_a_kill_between_the_new_file_and_the_end_of_the_old_one_doubles_nothing(sweep, tmp_path):
    [file] = directory_of(sweep, 0).iterdir()
    for name in (FORMER, file.name):
        shutil.copy(file, tmp_path / name)
    assert points(tmp_path) == WHOLE


def test_hparams_say_the_parameters_and_how_it_ended_and_nan_is_written_as_it_is(sweep):
    from tensorboard.plugins.hparams import metadata

    for number, failed in ((0, False), (1, True)):
        content = read(directory_of(sweep, number)).PluginTagToContent("hparams")
        ended = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
        began = metadata.parse_session_start_info_plugin_data(
            content[metadata.SESSION_START_INFO_TAG]
        )
        assert began.group_name == f"trial {number}"
        assert (ended.status == 2) == failed
        assert dict(began.hparams).keys() == ({"rate"} if number == 0 else set())
    [(step, value)] = points(directory_of(sweep, 1))
    assert step == 0
    assert math.isnan(value)


def test_a_disk_that_refuses_it_fails_no_trial(tmp_path):
    scripts = {None: resumed}
    with scripted_sweep(tmp_path, scripts, epochs=6, tensorboard=True, audit="off") as sweep:
        (tmp_path / "scripted").mkdir()
        (tmp_path / "scripted" / "tensorboard").write_text("no directory")
        sweep.serve()
        assert sweep.outcomes() == ["complete"]
        assert any("TensorBoard's file is not up to date" in text for text in sweep.notices)


def test_without_the_package_the_command_that_installs_it_is_said(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith("tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    study = sweeper.Study(
        name="s", model=never, data=never, epochs=1, trials=1, objective="loss", tensorboard=True
    )
    with pytest.raises(DefinitionError, match=r"pip install .*\[tensorboard\]"):
        study.run(isolation="inline", workers=1, runs_dir=tmp_path)


def test_a_worker_that_writes_them_does_not_import_tensorflow(tmp_path):
    script = (
        "import sys, pathlib\n"
        "from sweeper.records.results import EpochRecord, TrialRecord\n"
        "from sweeper.run.worker.tensorboard_files import TrialSummaries\n"
        "trial = TrialRecord('s', 0, 'complete', {'x': None}, 1.0, 0, None, (EpochRecord(0, {}),))\n"
        "TrialSummaries(pathlib.Path(sys.argv[1])).write(trial)\n"
        "print('tensorflow' in sys.modules)\n"
    )
    ran = python("-c", script, tmp_path, cwd=tmp_path)
    assert ran.out == "False\n", ran.err
    assert len(list(tmp_path.iterdir())) == 1
