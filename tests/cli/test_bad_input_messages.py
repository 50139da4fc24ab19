"""Every bad input ends in the one message that the list has, and leaves nothing half-written."""

import errno
import functools
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.records.results import CheckpointRecord, EpochRecord

URL = "sqlite:///runs/sweeper.db"
ENTRY = re.compile(r"^sweeper (.*?)(?: \((.*)\))? -> (\d)\n    (.*)$", re.MULTILINE)


BAD_INPUTS = ENTRY.findall(Path(__file__).with_name("bad_input.txt").read_text(encoding="utf-8"))
"""What is typed, what is there, the exit code and the message."""

TRIALS_FAILED = 3
NETWORK = """\
import keras
import numpy as np
from sweeper import Data, Study

def build_model(trial):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def load_data(trial):
    x = np.ones((8, 2), "float32")
    return Data(train=(x, x[:, 0]), batch_size=4)

study = Study(
    name="line", model=build_model, data=load_data, objective="loss", epochs=1, trials=1, audit="off"
)
"""

BUDGETED = (
    NETWORK.replace("import Data,", "import Data, Halving, Hyperband,")
    .replace("epochs=1, trials=1", "epochs=9, trials=1, budget=BUDGET")
    .replace("import keras", "import keras, optuna", 1)
)

FILES = {
    "empty.py": "x = 1\n",
    "broken.py": "x = 1\nx.colour()\n",
    "package.py": "import a_package_that_is_nowhere\n",
    "syntax.py": "x = (1\n",
    "sweep.py": NETWORK,
    "two.py": NETWORK + 'other = Study(name="b", model=len, data=len, epochs=1, trials=1)\n',
    "argument.py": NETWORK.replace("epochs=1", "epoch=1"),
    "three.py": NETWORK.replace("epochs=1", "epochs=3"),
    "value.py": NETWORK.replace("epochs=1", "epochs=0"),
    "name.py": NETWORK.replace('"line"', '"../line"'),
    "keep.py": NETWORK.replace("trials=1", "trials=1, keep=3"),
    "uncompiled.py": NETWORK.replace('    model.compile("sgd", "mse")\n', ""),
    "metric.py": NETWORK.replace('objective="loss"', 'objective="val_acc"'),
    "rungs.py": BUDGETED.replace("BUDGET", "Halving(min_epochs=0)"),
    "factor.py": BUDGETED.replace("BUDGET", "Hyperband(factor=1)"),
    "brackets.py": BUDGETED.replace("BUDGET", "Halving(brackets=5)"),
    "late.py": BUDGETED.replace("BUDGET", "Hyperband(min_epochs=9)"),
    "budget.py": BUDGETED.replace("BUDGET", "9"),
    "pruned.py": BUDGETED.replace("BUDGET", "Halving(), pruner=optuna.pruners.NopPruner()"),
    "unreported.py": BUDGETED.replace("BUDGET", "Halving()")
    .replace('objective="loss"', 'objective="val_loss"')
    .replace("batch_size=4", "batch_size=4, validation=(x, x[:, 0]), validation_freq=2"),
    "nothing.py": NETWORK.replace("    return model\n", ""),
    "lengths.py": NETWORK.replace("x[:, 0])", "x[:7, 0])"),
}


@functools.cache
def _database():
    """The file that every case begins from: made once, since that takes longer than most cases."""
    with Database.open(URL, create=True) as database:
        repository = Repository(database)
        repository.create_or_open(StudyRow("digits", {}, "loss", "minimize", 3, None, 0))
        claim = repository.claim("digits", WorkerIdentity.here(), lambda n: n)
        repository.finish(claim.token, Ending("failed", error="ValueError: no such layer"))
    return Path("runs/sweeper.db").read_bytes()


def a_study():
    """A study ``digits`` of three trials, of which one has failed."""
    content = _database()
    Path("runs").mkdir(exist_ok=True)
    Path("runs/sweeper.db").write_bytes(content)


def a_study_that_trained():
    """``digits``: trial 0 is complete after 3 epochs, and its last checkpoint gone; trial 1 failed."""
    Path("runs").mkdir()
    with Database.open(URL, create=True) as database:
        repository = Repository(database)
        definition = {"epochs": 3}
        repository.create_or_open(StudyRow("digits", definition, "loss", "minimize", 3, None, 0))
        for value in (1.0, None):
            claim = repository.claim("digits", WorkerIdentity.here(), lambda n: n)
            epochs = [EpochRecord(n, {"loss": 1.0}) for n in range(3 if value else 2)]
            repository.record_epochs(claim.token, epochs)
            ended = Ending("failed", error="ValueError: no such layer")
            if value is not None:
                ended = Ending("complete", end_step=30, value=value, digest="d")
                directory = Path("runs/digits/trial-00000/attempt-01/checkpoints").absolute()
                (directory / "step-000000020").mkdir(parents=True)
                for step in (20, 30):
                    checkpoint = CheckpointRecord(
                        step, step // 10, "d", 9, str(directory / f"step-0000000{step}")
                    )
                    repository.record_checkpoint(claim.token, checkpoint)
            repository.finish(claim.token, ended)


def a_study_that_runs():
    a_study_that_trained()
    with Database.open(URL, create=False) as database:
        Repository(database).claim("digits", WorkerIdentity.here(), lambda n: n)


def files():
    for name, text in FILES.items():
        Path(name).write_text(text)


def a_newer_database():
    a_study()
    with Database.open(URL, create=False) as database:
        database.write(
            lambda c: c.exec_driver_sql("update sweeper_alembic_version set version_num = '9999'")
        )


def below_the_study():
    a_study()
    Path("notes").mkdir()
    os.chdir("notes")


def above_the_study():
    Path("project").mkdir()
    os.chdir("project")
    a_study()
    os.chdir("..")


def settings(text):
    return lambda: Path("sweeper.toml").write_text(text) and None


def no_space(_operations, _descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def a_torn_checkpoint():
    files()
    assert main(typed("run sweep.py")) == 0
    for file in Path("runs").rglob("tensors.safetensors"):
        file.chmod(0o644)
        os.truncate(file, file.stat().st_size // 2)


GIVEN = {
    "": lambda: None,
    "a study": a_study,
    "files": files,
    "a study that trained": a_study_that_trained,
    "a study that runs": a_study_that_runs,
    "a study and files": lambda: (a_study(), files()),
    "a study in the directory above": below_the_study,
    "a study in a directory below": above_the_study,
    "a study whose database is gone": lambda: (a_study(), shutil.rmtree("runs")),
    "a full disk": files,
    "a study whose checkpoint is torn": a_torn_checkpoint,
    "no database": lambda: Path("notes.db").write_text("notes " * 1000),
    "a newer database": a_newer_database,
    "an unknown setting": settings("worker = 3\n"),
    "an impossible setting": settings('workers = "three"\n'),
    "settings that are no TOML": settings("workers = [\n"),
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path_factory):
    """Nothing of this machine: neither its programs nor the terminal's width."""
    programs = tmp_path_factory.mktemp("programs")
    (programs / "sweeper").touch(0o755)  # the only one
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("COLUMNS", "400")


def typed(words):
    """The words, and options that keep a run in this process unless they have them already."""
    verb, *rest = words.split()
    if verb not in ("run", "extend"):
        return [verb, *rest]
    workers = [] if "--workers" in rest else ["--workers", "1"]
    return [verb, *rest, *workers, *([] if "--isolation" in rest else ["--isolation", "inline"])]


def whole_message(answer, here):
    """What was answered last, on one line, without the parser's frame and its lines on usage."""
    text = answer.err.replace(str(here), "HERE").replace(socket.gethostname(), "HOST")
    text = re.sub(r"\b\d+ bytes", "SOME bytes", text)
    text = re.sub(r"(its newest is) \d{4}", r"\1 NEWEST", text)
    text = re.sub(r"Usage: .*\nTry '.*' for help\.\n", "", text)
    line = " ".join(re.sub("[│╭╰╮╯─]+", " ", text).split()).removeprefix("Error ")
    # What was said before: notices and progress, or the user's own traceback.
    for begins in ("trial 0 failed: ", "error: "):
        if begins in line:
            return line[line.rindex(begins) :]
    return line


@pytest.mark.parametrize(
    ("words", "state", "code", "message"), BAD_INPUTS, ids=[bad[0] for bad in BAD_INPUTS]
)
def test_a_bad_input_ends_in_its_message(  # noqa: PLR0917
    call, bare_directory, capsys, monkeypatch, words, state, code, message
):
    GIVEN[state]()
    if state == "a full disk":
        monkeypatch.setattr("sweeper.checkpoint.operations.FileOperations.fsync", no_space)
    capsys.readouterr()
    sources = sorted(bare_directory.rglob("*.py"))
    answer = call(*typed(words))
    assert whole_message(answer, bare_directory) == message
    assert answer.code == int(code)
    a_trial_ran = answer.code == TRIALS_FAILED or message.startswith("error: trial 0 shows")
    if not a_trial_ran:
        assert answer.out == ""
    if state in ("", "files") and not a_trial_ran:
        leftovers = [p for p in bare_directory.iterdir() if p.name not in ("__pycache__", *FILES)]
        assert leftovers == [], "a command that was refused leaves nothing"
    assert sorted(bare_directory.rglob("*.py")) == sources
