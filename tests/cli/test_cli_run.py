"""``run`` and ``resume``: what reaches the sweep, what is printed where, and every exit code."""

import inspect
from pathlib import Path

import pytest
from drawn_studies import made, trial_record

from sweeper import errors
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.errors import Interrupted, StudyImportError, SweeperError
from sweeper.records.results import EpochRecord
from sweeper.run.launch.sources import describe_source, target_source

BEGINNING = "importing TensorFlow and s.py ...\n"
"""What `sweeper run s.py` says first."""


def test_what_is_typed_or_set_reaches_the_sweep(call, sweep, monkeypatch):
    monkeypatch.setenv("SWEEPER_ENGINE_ADDRESS", "tcp://10.0.0.1:8786")
    monkeypatch.setenv("SWEEPER_LEASE_SECONDS", "90")
    answer = call(
        "run", "s.py:study", "--workers", "3", "--trials", "5", "--engine", "dask",
        "--isolation", "inline", "--storage", "sqlite:///x.db", "--runs-dir", "r",
        "--gpus", "0,1", "--trials-per-gpu", "2", "--gpu-memory", "512", "--fail-fast",
        "--grace", "20",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    (request,) = sweep.requests
    assert (request.source, request.study) == ("s.py:study", None)
    assert (request.engine, request.engine_address) == ("dask", "tcp://10.0.0.1:8786")
    options = request.options
    assert (options.slots, request.trials, options.isolation) == (3, 5, "inline")
    assert (options.storage, options.runs_dir) == ("sqlite:///x.db", Path("r"))
    assert (options.gpus, options.trials_per_gpu, options.gpu_memory) == ("0,1", 2, 512)
    assert (options.fail_fast, options.grace, options.lease_seconds) == (True, 20.0, 90.0)


def test_resume_names_the_study_and_no_source(call, sweep):
    assert call("resume", "digits").code == 0
    (request,) = sweep.requests
    assert (request.source, request.study, request.trials) == (None, "digits", None)
    assert request.options.storage == "sqlite:///runs/sweeper.db"


def test_the_summary_is_on_stdout_and_the_progress_on_stderr(call, sweep):
    answer = call("run", "s.py")
    assert "study digits: 0/2 done, 1 worker" in answer.err
    assert "study digits" not in answer.out
    lines = answer.out.splitlines()
    first, second = (next(i for i, x in enumerate(lines) if x.split()[:1] == [n]) for n in "10")
    assert first < second, "the best trial must stand first"
    assert "best: trial 1  0.91  learning_rate=0.02" in answer.out
    assert "sweeper show digits 1" in answer.out


def test_with_json_stdout_is_the_status_alone(call, sweep):
    answer = call("run", "s.py", "--json")
    assert answer.json == sweep.results.status.to_json()


def test_failed_trials_exit_3_with_their_error_and_how_to_see_it(call, sweep):
    error = 'Traceback (most recent call last):\n  File "s.py"\nValueError: no such [bold] layer\n'
    failed = trial_record(1, state="failed", error=error)
    sweep.results = made("digits", trial_record(0), failed)
    answer = call("run", "s.py", "--runs-dir", "r")
    assert answer.code == 3
    assert "trial 1 failed: ValueError: no such [bold] layer" in answer.err
    assert "sweeper show digits 1 --runs-dir r" in answer.err
    assert "trial 0 failed" not in answer.err
    as_json = call("run", "s.py", "--json")
    assert (as_json.code, as_json.json["failed"]) == (3, 1)


@pytest.mark.parametrize(
    ("words", "resume"),
    [
        (
            ("run", "s.py", "--workers", "2", "--storage", "sqlite:///my runs.db"),
            "sweeper resume digits --storage 'sqlite:///my runs.db' --workers 2",
        ),
        (("resume", "digits"), "sweeper resume digits"),
        (
            (
                "run",
                "s.py",
                *["--engine", "ray", "--engine-address", "auto", "--gpus", "all", "--fail-fast"],
            ),
            "sweeper resume digits --engine ray --engine-address auto --gpus all",
        ),
    ],
)
def test_an_interruption_exits_130_with_the_command_that_goes_on(call, sweep, words, resume):
    sweep.error = Interrupted("stopped by SIGINT")
    answer = call(*words)
    assert (answer.code, answer.out) == (130, "")
    assert "stopped by SIGINT" in answer.err
    assert answer.err.splitlines()[-1] == f"  {resume}"


def test_an_interruption_before_the_study_is_known_says_to_run_again(call, sweep):
    sweep.error = Interrupted("stopped by SIGTERM")
    sweep.opens = None
    assert call("run", "s.py").err.splitlines()[-1] == "  sweeper run s.py"


def test_ctrl_c_before_the_sweep_listens_for_it_is_an_interruption_too(call, sweep):
    sweep.error = KeyboardInterrupt()
    sweep.opens = None
    answer = call("run", "s.py")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == f"{BEGINNING}interrupted\nresume with:\n  sweeper run s.py\n"


def every_error():
    """Return each error of the tree."""
    kinds = inspect.getmembers(errors, inspect.isclass)
    return [kind for _, kind in kinds if issubclass(kind, SweeperError)]


@pytest.mark.parametrize("kind", every_error())
def test_each_error_ends_in_its_own_exit_code_and_one_message(call, sweep, kind):
    sweep.error = kind("seen this, expected that")
    answer = call("run", "s.py")
    expected = {errors.UsageError: 2, errors.StudyFileError: 2, errors.UnknownStudyError: 2}
    expected |= {Interrupted: 130, errors.IndependenceError: 4, errors.ExactnessError: 4}
    expected |= {errors.MixedStudyError: 4}
    assert answer.code == expected.get(kind, 1)
    assert answer.err.count("seen this, expected that") == 1
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_a_module_that_fails_shows_the_users_traceback_once_before_the_message(call, sweep):
    traceback = 'Traceback (most recent call last):\n  File "s.py", line 3\nZeroDivisionError: x\n'
    sweep.error = StudyImportError("s.py cannot be imported", traceback)
    sweep.opens = None
    answer = call("run", "s.py")
    assert answer.code == 1
    assert answer.err == f"{BEGINNING}{traceback}error: s.py cannot be imported\n"


def test_an_unexpected_error_is_one_line_that_calls_it_a_bug(call, sweep):
    sweep.error = RuntimeError("odd\nthing")
    sweep.opens = None
    answer = call("run", "s.py")
    assert answer.code == 1
    (line,) = answer.err.removeprefix(BEGINNING).splitlines()
    assert line.startswith("error: RuntimeError: odd thing; this is a bug in sweeper")


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("--debug", "run", "s.py"), None),
        (("run", "s.py", "--debug"), None),
        (("run", "s.py"), None),
        (("run", "s.py"), "1"),
        (("run", "s.py"), "0"),
    ],
)
def test_debug_alone_shows_the_traceback(call, sweep, monkeypatch, words, variable):
    sweep.error = RuntimeError("odd")
    sweep.opens = None
    if variable is not None:
        monkeypatch.setenv("SWEEPER_DEBUG", variable)
    assert ("Traceback" in call(*words).err) is ("--debug" in words or variable == "1")


@pytest.mark.parametrize("verb", [("run", "s.py"), ("resume", "digits")])
def test_what_is_imported_is_said_first_and_quiet_leaves_the_summary_alone(call, sweep, verb):
    assert call(*verb).err.startswith("importing TensorFlow and")
    quiet = call(*verb, "-q")
    assert quiet.err == ""
    assert quiet.out


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    ("verb", "imported"),
    [
        ("verify", "sweeper.checks.verify.verify_study"),
        ("evaluate", "sweeper.api.evaluating.evaluate_study"),
        ("worker", "sweeper.run.cluster.host.run_worker"),
    ],
)
def test_what_is_imported_is_said_before_it_is(verb, imported, call, monkeypatch, capsys, *, quiet):
    outputs = []

    def slow(*_arguments):
        outputs.append(capsys.readouterr().err)
        raise SweeperError("it was only to be called")

    monkeypatch.setattr(imported, slow)
    assert call(verb, "digits", *(["-q"] if quiet else [])).code == 1
    assert outputs == ["" if quiet else "importing TensorFlow and the study digits ...\n"]


WHOLE = """\
from sweeper import Study

def build(trial):
    return None

study = Study(name="line", model=build, data=build, epochs=1, trials=TRIALS)
"""


@pytest.fixture
def finished():
    """Store a study of one trial, which is complete, from the file ``line.py``."""
    store_finished(WHOLE.replace("TRIALS", "1"))


def store_finished(text):
    Path("line.py").write_text(text)
    Path("runs").mkdir()
    with Database.open("sqlite:///runs/sweeper.db", create=True) as database:
        repository = Repository(database)
        source = describe_source(target_source("line.py"))
        definition = {"name": "line", "epochs": 1}
        row = StudyRow("line", definition, "val_loss", "minimize", 1, None, 0, source=source)
        repository.create_or_open(row)
        claim = repository.claim("line", WorkerIdentity.here(), lambda n: n)
        repository.record_epochs(claim.token, [EpochRecord(0, {"val_loss": 0.5})])
        repository.finish(claim.token, Ending("complete", end_step=2, value=0.5, digest="d"))


@pytest.mark.parametrize("words", ["resume line", "run line.py", "run line.py --trials 1"])
def test_a_finished_study_is_shown_without_importing_it(call, sweep, finished, words):
    answer = call(*words.split(), "--workers", "2")
    assert (answer.code, sweep.requests) == (0, [])
    assert answer.err == "study line: 1/1 done, 2 workers, storage sqlite:///runs/sweeper.db\n"
    assert "best: trial 0  0.5" in answer.out


def test_data_that_the_file_computes_are_imported_by_a_run_and_not_by_a_resume(call, sweep):
    store_finished("DATA = sorted([3, 2])\n" + WHOLE.replace("TRIALS", "1"))
    assert "best: trial 0  0.5" in call("resume", "line").out
    assert sweep.requests == []
    call("run", "line.py")
    assert len(sweep.requests) == 1


def write(text):
    return lambda: Path("line.py").write_text(text)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("run line.py", write(WHOLE.replace("TRIALS", "2"))),
        ("run line.py", write(WHOLE.replace("TRIALS", "1").replace("return None", "return 1"))),
        ("run line.py", write("import helper\n" + WHOLE.replace("TRIALS", "1"))),
        ("run line.py:study", lambda: None),
        ("run line.py --trials 2", lambda: None),
        ("run line.py --fresh", lambda: None),
        ("run line.py --epochs 3", lambda: None),
        ("resume line --trials 2", lambda: None),
        ("resume line --accept-changes", lambda: None),
        ("extend line --epochs 3", lambda: None),
        ("run other.py", lambda: Path("line.py").rename("other.py")),
    ],
)
def test_whatever_may_be_left_to_do_goes_the_way_of_every_run(
    call, sweep, finished, words, changed
):
    changed()
    Path("helper.py").touch()
    assert call(*words.split()).code == 0
    assert len(sweep.requests) == 1


def test_a_finished_study_whose_file_changed_is_not_resumed(call, sweep, finished):
    write(WHOLE.replace("TRIALS", "2"))()
    answer = call("resume", "line")
    assert (answer.code, sweep.requests) == (2, [])
    assert "line.py on this machine differs from the file of study 'line'" in answer.err
