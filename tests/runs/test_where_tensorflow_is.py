"""TensorFlow is imported where trials run, and in no worker or command beside them."""

import pytest
from short_trials import PLAIN, UNVALIDATED
from study_files import StudyText
from sweeps import python

from sweeper.run.launch import server_process

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
    StudyText(model=PLAIN, data=UNVALIDATED, arguments=f"{alike} epochs=2").write(
        tmp_path / "small.py"
    )
    StudyText(name="brief", model=PLAIN, data=ONE_STEP, arguments=f"{alike} epochs=1").write(
        tmp_path / "brief.py"
    )
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
        ["export", "small", "--format", "weights", "--output", "end.weights.h5"],
        ["report", "small", "--output", "report.html"],
        *(["status", "small"], ["show", "small", "0"], ["best", "small"], ["ls"]),
    ]
    ended = python(
        "-c", VERBS.format(server=server_process._SERVER, commands=commands), cwd=tmp_path
    )
    assert ended.code == 0, ended.err
