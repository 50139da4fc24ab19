"""Changed code as a new user meets it: what `run`, `resume` and `verify` say of an edit, whole."""

import functools
import io
import linecache
import sys
from pathlib import Path

import pytest

from sweeper import Study
from sweeper.checks.verify import StudyVerification
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository, WorkerIdentity
from sweeper.errors import DefinitionChangedError
from sweeper.run.launch.launchers import Loaded
from sweeper.run.launch.sources import load_source
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.prepared_study import prepare

STUDY = '''\
import helpers_of_edits
from sweeper import Study

WIDTH = 32
DATA = "digits.npz"


def build_model(trial):
    """A model."""
    rate = trial.suggest_float("rate", 1e-3, 1e-1)
    return helpers_of_edits.network(WIDTH, 16, rate)


def load_data(trial, share=0.8):
    return helpers_of_edits.read(DATA, share)


study = Study(
    name="edits", model=build_model, data=load_data, epochs=2, trials=2, objective="loss", threads=1
)
'''
HELPERS = """\
def network(width, last, rate):
    return width, last, rate


def read(name, share):
    return name, share


def other():
    return 1
"""
FILE, HELPER = "study_of_edits.py", "helpers_of_edits.py"

EDITS = {
    "a comment": (FILE, "    rate =", "    # drawn\n    rate =", None),
    "a layer's size": (FILE, "16", "64", "build_model has changed (study_of_edits.py)"),
    "a helper in another file": (
        HELPER,
        "return name, share",
        "return share, name",
        "helpers_of_edits.read has changed (helpers_of_edits.py)",
    ),
    "the epochs": (FILE, "epochs=2", "epochs=3", "epochs was 2 and is now 3"),
}


class ServerHere:
    """In the fork server's place: the study is imported in this process, afresh each time."""

    isolation = "fork"

    def __init__(self, source, process=None):
        self.source = source

    def loaded(self):
        forget()
        definition = load_source(self.source)
        return Loaded(definition.settings(), True, "", definition.code())

    def choose_isolation(self, *_given):
        """Every study can be forked."""

    def close(self):
        """Nothing is held."""


def forget():
    for name in [name for name in sys.modules if name.endswith("_of_edits")]:
        del sys.modules[name]
    linecache.clearcache()


@functools.cache
def empty_database():
    """What every case begins from: made once, since that takes longer than most cases."""
    with Database.open("sqlite:///runs/sweeper.db", create=True):
        pass
    return Path("runs/sweeper.db").read_bytes()


@pytest.fixture
def directory(bare_directory, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(bare_directory), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for module in ("sweeper.run.prepared_study", "sweeper.run.launch.launchers"):
        monkeypatch.setattr(f"{module}.WarmServer", ServerHere)
    monkeypatch.setattr(
        "sweeper.checks.verify.verify_with",
        lambda request, repository, *_: StudyVerification(
            request.study, (), codes=repository.status(request.study).codes
        ),
    )
    (bare_directory / FILE).write_text(STUDY)
    (bare_directory / HELPER).write_text(HELPERS)
    content = empty_database()
    (bare_directory / "runs").mkdir(exist_ok=True)
    (bare_directory / "runs" / "sweeper.db").write_bytes(content)
    yield bare_directory
    forget()


def store(listener=lambda _: None, **given):
    options = WorkerOptions(1, "sqlite:///runs/sweeper.db", Path("runs"))
    with prepare(RunRequest(options, listener, **given)):
        pass


def begin(repository):
    claim = repository.claim("edits", WorkerIdentity.here(), lambda number: number)
    repository.record_process(claim.token, 1, "fork", 0)
    return claim


def opened():
    return Database.open("sqlite:///runs/sweeper.db", create=False)


def end_trials(*endings):
    with opened() as database:
        for ending in endings:
            repository = Repository(database)
            repository.finish(begin(repository).token, ending)


def complete(value):
    return Ending("complete", value=value, digest="d")


@pytest.fixture
def finished(directory):
    """The study with both its trials done."""
    store(source=FILE)
    end_trials(complete(0.5), complete(0.25))
    return directory


@pytest.mark.parametrize("edit", EDITS)
def test_what_run_resume_and_verify_say_of_an_edit(edit, call, finished):
    file, before, after, message = EDITS[edit]
    path = finished / file
    path.write_text(path.read_text().replace(before, after))
    resume, verify = call("resume", "edits"), call("verify", "edits")
    run = call("run", FILE)
    if message is None:
        assert (run.code, resume.code, verify.code) == (0, 0, 0)
        assert "edits  2/2 done" in run.out
        assert verify.out == "0 of 0 verified trials hold\n"
        return
    refused = ("defined differently", message, "--fresh", "--accept-changes")
    assert (run.code, run.out) == (1, "")
    assert all(words in run.err for words in refused), run.err
    if file == FILE:  # a database names it, so it is not run once it says something else
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
    ("verb", "edited", "message"),
    [
        (("run", FILE), FILE, "build_model has changed (study_of_edits.py)"),
        (("resume", "edits"), HELPER, "helpers_of_edits.network has changed"),
    ],
)
def test_an_accepted_change_is_recorded_and_reported_by_every_verb(
    verb, edited, message, call, finished
):
    path = finished / edited
    path.write_text(path.read_text().replace("16", "64").replace("last, rate\n", "rate, last\n"))
    accepted = call(*verb, "--accept-changes")
    assert accepted.code == 0
    assert message in accepted.err
    assert call(*verb).code == 0, "it is asked for once"
    with opened() as database:
        Repository(database).set_target("edits", 3)
    end_trials(complete(0.9))
    status = call("status", "edits", "--json").json
    assert [(g["trials"], g["current"], g["best"]["number"]) for g in status["codes"]] == [
        ([0, 1], False, 1),
        ([2], True, 2),
    ]
    assert status["best"]["number"] == 2
    shown = call("status", "edits").out
    assert "are ranked separately for each" in shown
    for group in status["codes"]:
        assert f"  {group['code']}" in shown
    assert call("show", "edits", "0", "--json").json["code"] == status["codes"][0]["code"]
    assert call("best", "edits", "--json").json["number"] == 2
    assert call("best", "edits", "--all-code", "--json").json["number"] == 1
    verify = call("verify", "edits")
    assert verify.code == 4
    assert "the study is mixed: its trials ran under different code" in verify.out
    old = call("verify", "edits", "--trial", "0")
    assert old.code == 4
    assert message in old.err


def test_a_typo_that_failed_every_trial_is_mended_and_run_again(call, directory):
    (directory / FILE).write_text(STUDY.replace('"loss"', '"los"'))
    store(source=FILE)
    end_trials(*[Ending("failed", error="ObjectiveError: no los")] * 2)
    shown = call("status", "edits")
    assert "sweeper show edits 0" in shown.out
    assert "sweeper retry" not in shown.out, "another attempt would fail in the same way"
    (directory / FILE).write_text(STUDY)
    store(source=FILE)
    with opened() as database:
        status = Repository(database).status("edits")
        assert (status.failed, status.interrupted) == (0, 2)
    notices = []
    (directory / FILE).write_text(STUDY.replace("16", "8"))
    store(notices.append, source=FILE)
    assert "No trial has a value yet, so nothing is mixed" in notices[-1].message


def test_failed_trials_are_given_another_attempt_together(call, directory):
    store(source=FILE)
    assert call("retry", "edits", "--failed").out == "no trial of study edits has failed\n"
    end_trials(*[Ending("failed", error="OSError: away")] * 2)
    answer = call("retry", "edits", "--failed")
    assert (answer.code, answer.out) == (
        0,
        "trials 0, 1 of study edits will get another attempt\n",
    )
    assert "sweeper resume edits" in answer.err
    assert call("retry", "edits", "0", "--failed").code == 2


def test_fresh_begins_anew_and_keeps_the_old_study_readable(call, finished):
    log = finished / "runs" / "edits" / "trial-00000" / "attempt-01" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("said before\n")
    (finished / FILE).write_text(STUDY.replace("16", "64"))
    store(source=FILE, fresh=True)
    assert [s["study"] for s in call("ls", "--json").json] == ["edits~1", "edits"]
    assert call("status", "edits", "--json").json["waiting"] == 2
    assert call("best", "edits~1", "--json").json["value"] == 0.25
    assert "said before" in call("logs", "edits~1", "0").out
    refused = call("resume", "edits~1")
    assert refused.code == 2
    assert "was renamed" in refused.err


def test_rm_asks_and_removes_rows_and_files(call, finished, monkeypatch):
    files = finished / "runs" / "edits" / "trial-00000"
    files.mkdir(parents=True)
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


CELLS = (
    "WIDTH = 8\n",
    "def build_model(trial):\n    return WIDTH  # one\n",
    "def load_data(trial):\n    return 1\n",
)


def cells(number, *edit):
    """Run the notebook's cells, each under a name that is another one every time."""
    namespace = {"__name__": "__main__"}
    for cell in CELLS:
        text = cell.replace(*edit) if edit else cell
        file = f"/tmp/ipykernel_{number}/{len(text)}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), namespace)
    return Study(
        name="edits",
        model=namespace["build_model"],
        data=namespace["load_data"],
        epochs=1,
        trials=1,
        objective="loss",
        threads=1,
    )


def test_an_edited_cell_is_refused_and_one_that_is_run_again_is_not(directory):
    store(definition=cells(1))
    end_trials(complete(0.5))

    def quiet(_event):
        """Show no progress."""

    assert cells(2).run(listener=quiet).status.complete == 1
    assert cells(3, "# one", "# two").resume(listener=quiet).status.complete == 1
    message = r"WIDTH has changed\. .* build_model has changed|WIDTH has changed"
    for number, verb in ((4, Study.run), (5, Study.resume)):
        with pytest.raises(DefinitionChangedError, match=message):
            verb(cells(number, "WIDTH = 8", "WIDTH = 9"), listener=quiet)
    with pytest.raises(
        DefinitionChangedError, match=r"build_model has changed \(a notebook's cell"
    ):
        cells(6, "return WIDTH", "return WIDTH + 1").run(listener=quiet)
    accepted = cells(7, "return WIDTH", "return WIDTH + 1").resume(
        listener=quiet, accept_changes=True
    )
    assert accepted.status.complete == 1
