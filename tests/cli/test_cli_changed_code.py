"""Changed code as a new user meets it: what `run`, `resume` and `verify` say of an edit, whole."""

import io
import linecache
import shutil
from pathlib import Path

import pytest

from sweeper import Study
from sweeper.cli.main import main
from sweeper.errors import DefinitionChangedError

STUDY = '''\
import helpers_of_edits
from sweeper import Study

WIDTH = 2


def build_model(trial):
    """A model."""
    rate = trial.suggest_float("rate", 1e-3, 1e-1)
    return helpers_of_edits.network(WIDTH, 1, rate)


def load_data(trial, count=8):
    return helpers_of_edits.read(count, 2)


study = Study(
    name="edits", model=build_model, data=load_data, epochs=1, trials=2, objective="loss", threads=1,
    sampler="random", audit="off",
)
'''
HELPERS = """\
import keras
import numpy as np
from sweeper import Data


def network(width, last, rate):
    layers = [keras.Input((width,)), keras.layers.Dense(last)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def read(count, width):
    x = np.ones((count, width), "float32")
    return Data(train=(x, x[:, 0]), batch_size=4)


def other():
    return 1
"""
FILE = "study_of_edits.py"
HELPER = "helpers_of_edits.py"

EDITS = {
    "a comment": (FILE, "    rate =", "    # drawn\n    rate =", None),
    "a layer's size": (
        FILE,
        ", 1,",
        ", 3,",
        "build_model has changed (study_of_edits.py)",
    ),
    "a helper in another file": (
        HELPER,
        "x[:, 0])",
        "x[:, 1])",
        "helpers_of_edits.read has changed (helpers_of_edits.py)",
    ),
    "the epochs": (FILE, "epochs=1", "epochs=3", "epochs was 1 and is now 3"),
}


def write_study(directory):
    (directory / FILE).write_text(STUDY)
    (directory / HELPER).write_text(HELPERS)
    return directory


def edit(file, old, new):
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory in which the study's trials were run, and a copy of it."""
    directory = write_study(tmp_path_factory.mktemp("trained"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert main(["run", FILE, "--workers", "2", "-q"]) == 0
    return directory, shutil.copytree(directory, tmp_path_factory.mktemp("copy") / "of")


@pytest.fixture
def finished(trained, monkeypatch):
    """That directory, as it was after the run."""
    directory, copy = trained
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize("change", EDITS)
def test_what_run_resume_and_verify_say_of_an_edit(change, call, finished):
    file, old, new, message = EDITS[change]
    edit(file, old, new)
    resume = call("resume", "edits")
    verify = call("verify", "edits")
    run = call("run", FILE)
    if message is None:
        assert (run.code, resume.code, verify.code) == (0, 0, 0)
        assert "edits  2/2 done" in run.out
        return
    refused = ("defined differently", message, "--fresh", "--accept-changes")
    assert (run.code, run.out) == (1, "")
    assert all(words in run.err for words in refused), run.err
    if file == FILE:  # a database names it, so it is not run once it says something else
        path = finished / file
        for other in (resume, verify, call("resume", "edits", "--accept-changes")):
            assert (other.code, other.out) == (2, "")
            assert f"{path} on this machine differs from the file of study 'edits'" in other.err
            assert f"type `sweeper run {path}" in other.err
        return
    assert (resume.code, resume.out) == (1, "")
    assert all(words in resume.err for words in refused), resume.err
    assert (verify.code, verify.out) == (1, "")
    assert f"has changed since its trials ran: {message}" in verify.err


@pytest.mark.parametrize(
    ("verb", "change", "message"),
    [
        (
            ("run", FILE),
            (FILE, "1, rate)", "1, rate / 2)"),
            "build_model has changed (study_of_edits.py)",
        ),
        (
            ("resume", "edits"),
            (HELPER, "SGD(rate)", "SGD(rate / 2)"),
            "helpers_of_edits.network has changed",
        ),
    ],
)
def test_an_accepted_change_is_recorded_and_reported_by_every_verb(
    verb, change, message, call, finished
):
    best_before = call("status", "edits", "--json").json["best"]
    edit(*change)
    accepted = call(*verb, "--accept-changes", "--trials", "3")
    assert accepted.code == 0
    assert message in accepted.err
    assert call(*verb).code == 0, "it is asked for once"
    status = call("status", "edits", "--json").json
    assert [(g["trials"], g["current"], g["best"]["number"]) for g in status["codes"]] == [
        ([0, 1], False, best_before["number"]),
        ([2], True, 2),
    ]
    assert status["best"]["number"] == 2
    output = call("status", "edits").out
    assert "are ranked separately for each" in output
    for group in status["codes"]:
        assert f"  {group['code']}" in output
    assert call("show", "edits", "0", "--json").json["code"] == status["codes"][0]["code"]
    assert call("best", "edits", "--json").json["number"] == 2
    best = min((best_before, status["best"]), key=lambda trial: trial["value"])
    assert call("best", "edits", "--all-code", "--json").json["number"] == best["number"]
    verify = call("verify", "edits")
    assert verify.code == 4
    assert "the study is mixed: its trials ran under different code" in verify.out
    old = call("verify", "edits", "--trial", "0")
    assert old.code == 4
    assert message in old.err


def test_a_range_that_is_widened_in_mid_study_leaves_one_ranking_and_is_said_once(call, finished):
    edit(FILE, "1e-3, 1e-1", "1e-5, 1.0")
    grown = call("run", FILE, "--trials", "4", "--workers", "1")
    assert grown.code == 0, grown.err
    notice = (
        "the range of 'rate' is 1e-05 to 1.0 from trial 2 on; it was 0.001 to 0.1. All trials are ranked "
        "together"
    )
    assert grown.err.count(notice) == 1, grown.err
    assert "codes" not in call("status", "edits", "--json").json
    assert "4/4 done" in call("status", "edits").out
    verify = call("verify", "edits", "--all")
    assert verify.code == 0, verify.out
    # The control: a layer beside the range is a change of what the trials depend on.
    edit(FILE, "1e-5, 1.0", "1e-5, 2.0")
    edit(FILE, ", 1,", ", 3,")
    assert "build_model has changed" in call("run", FILE, "--trials", "5").err


def test_a_typo_that_no_trial_can_succeed_with_is_mended_and_run_again(call, bare_directory):
    write_study(bare_directory)
    edit(FILE, '"loss"', '"other_loss"')
    assert call("run", FILE).code == 1
    edit(FILE, '"other_loss"', '"loss"')
    mended = call("run", FILE)
    assert mended.code == 0, mended.err
    assert "No trial has a value yet, so nothing is mixed" in mended.err
    assert call("status", "edits", "--json").json["complete"] == 2


def test_fresh_begins_anew_and_keeps_the_old_study_readable(call, finished):
    (finished / "runs/edits/trial-00000/attempt-01/log.txt").write_text("said before\n")
    best = call("best", "edits", "--json").json["value"]
    edit(FILE, "1, rate)", "1, rate / 2)")
    assert call("run", FILE, "--fresh").code == 0
    assert [s["study"] for s in call("ls", "--json").json] == ["edits~1", "edits"]
    assert "codes" not in call("status", "edits", "--json").json
    assert call("best", "edits~1", "--json").json["value"] == best
    assert "said before" in call("logs", "edits~1", "0").out
    refused = call("resume", "edits~1")
    assert refused.code == 2
    assert "was renamed" in refused.err


def test_rm_asks_and_removes_rows_and_files(call, finished, monkeypatch):
    files = finished / "runs" / "edits" / "trial-00000"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    unanswered = call("rm", "edits")
    assert unanswered.code == 2
    assert "--yes" in unanswered.err
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert call("rm", "edits").out == "nothing was removed\n"
    assert files.is_dir()
    answer = call("rm", "edits", "--yes")
    assert (answer.code, answer.out.splitlines()[0]) == (0, "removed study edits: 2 trials")
    assert not files.parent.exists()
    assert call("ls", "--json").json == []
    assert call("rm", "edits", "--yes").code == 2


NOTEBOOK = """\
import keras
import numpy as np
from sweeper import Data

WIDTH = 2

# %%
def build_model(trial):
    model = keras.Sequential([keras.layers.Dense(WIDTH)])  # one
    model.compile("sgd", "mse")
    return model

# %%
def load_data(trial):
    return Data(train=(np.ones((4, 2), "float32"),) * 2, batch_size=2)
"""


def cells(number, *edit):
    """Run the notebook's cells, each under a name that is another one every time."""
    namespace = {"__name__": "__main__"}
    for cell in NOTEBOOK.split("# %%\n"):
        text = cell.replace(*edit) if edit else cell
        file = f"/tmp/ipykernel_{number}/{len(text)}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), namespace)
    factories = {"model": namespace["build_model"], "data": namespace["load_data"]}
    policy = {"objective": "loss", "threads": 1, "audit": "off"}
    return Study(name="edits", **factories, epochs=1, trials=1, **policy)


def test_an_edited_cell_is_refused_and_one_that_is_run_again_is_not():
    def quiet(_event):
        """Show no progress."""

    assert cells(1).run(workers=1, listener=quiet).status.complete == 1
    assert cells(2).run(listener=quiet).status.complete == 1
    assert cells(3, "# one", "# two").resume(listener=quiet).status.complete == 1
    message = r"WIDTH has changed\. .* build_model has changed|WIDTH has changed"
    for number, verb in ((4, Study.run), (5, Study.resume)):
        with pytest.raises(DefinitionChangedError, match=message):
            verb(cells(number, "WIDTH = 2", "WIDTH = 3"), listener=quiet)
    changed = ("(WIDTH)", "(WIDTH, use_bias=False)")
    with pytest.raises(
        DefinitionChangedError, match=r"build_model has changed \(a notebook's cell"
    ):
        cells(6, *changed).run(listener=quiet)
    accepted = cells(7, *changed).resume(listener=quiet, accept_changes=True)
    assert accepted.status.complete == 1


def test_another_value_from_the_environment_is_said_and_refuses_nothing(
    call, tmp_path, monkeypatch
):
    write_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    edit(FILE, "WIDTH = 2", 'import os\nRATE = float(os.environ.get("SCALE", 1))\nWIDTH = 2')
    edit(FILE, "1, rate)", "1, rate * RATE)")
    notice = (
        "the code of 'edits' reads $SCALE from the environment, with another value than when the study was "
        "created; trials of both values are ranked together"
    )
    monkeypatch.setenv("SCALE", "1")
    assert notice not in call("run", FILE, "--trials", "1").err
    assert notice not in call("run", FILE, "--trials", "2").err
    monkeypatch.setenv("SCALE", "2")
    grown = call("run", FILE, "--trials", "3")
    assert grown.code == 0, grown.err
    assert " ".join(grown.err.split()).count(notice) == 1, grown.err
