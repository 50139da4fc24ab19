"""However a trial's process is made, and wherever its study is defined, the result is the same."""

import json
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from forked_programs import PROGRAM, WARM_SERVER
from scripted_trials import assignment_in
from study_files import StudyText
from sweeps import Result, command, differing, python, results_of, sweep, trials_in

from sweeper.errors import DefinitionError
from sweeper.run.launch import server_process
from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.server_process import begin_server, trial_environment
from sweeper.run.launch.sources import target_source
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol import messages

WATCHED = StudyText(
    head="""
    from tensorflow.python.eager import context

    import random

    DRAWN_AT_IMPORT = [random.random(), float(np.random.rand())]
    """,
    model="""
    threading = __import__("tensorflow").config.threading
    seen = {
        "pid": os.getpid(),
        "untouched": context.context()._context_handle is None,
        "threads": [
            threading.get_intra_op_parallelism_threads(),
            threading.get_inter_op_parallelism_threads(),
        ],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "drawn": DRAWN_AT_IMPORT,
        "program": Path("/proc/self/cmdline").read_text(),
        "environment": [
            *(f"{name}={value}" for name, value in os.environ.items()),
            *Path("/proc/self/environ").read_text().split(chr(0)),
        ],
    }
    (trial.directory / "seen.json").write_text(json.dumps(seen))
    """,
    data="return Data(train=(x, y), batch_size=8)",
    arguments="""objective="loss", epochs=2, trials=2, sampler="random", threads=2,
    audit="off", checkpoint_every=Every(steps=13)""",
)

pytestmark = pytest.mark.usefixtures("real_servers")
"""For how trials are made; tests for which any server will do have `forking`."""

REAL_SERVER = server_process._SERVER


CREDENTIALS = {
    "PGPASSWORD": "SECRET",
    "PGPASSFILE": "/SECRET",
    "RAY_AUTH_TOKEN": "SECRET",
    "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": "/SECRET",
}

INLINE = f"""
import os, sys
os.environ.update({CREDENTIALS!r})
from sweeper.cli.main import main
sys.exit(main())
"""
"""The command, in a process that is forked with TensorFlow imported: its trials run in it."""

STARTS_THREADS = """
import threading
threading.Thread(target=threading.Event().wait, name="my-thread", daemon=True).start()
"""
"""What a study that is else the same may have at its top level, so that each trial imports it itself."""

SERVER_WITH_THREADS = """
import sys, threading
threading.Thread(target=threading.Event().wait, name="a-debugger", daemon=True).start()
from sweeper.run.launch.warm_server import main
main(sys.argv[1:])
"""
"""A server that has a thread before it imports the study, as under some debuggers."""

AT_TOP = StudyText(
    head="""
    import tensorflow as tf

    SAMPLES = np.random.default_rng(3).normal(size=(160, 16)).astype("float32")
    DATA = tf.data.Dataset.from_tensor_slices((SAMPLES, SAMPLES.sum(1)))
    DATA = DATA.shuffle(160, seed=1, reshuffle_each_iteration=False).batch(8)
    """,
    data="return Data(train=DATA)",
    arguments='objective="loss", epochs=2, trials=1, sampler="random", audit="off"',
)
"""A study with a `tf.data` dataset at its top, as many scripts have one."""


@dataclass(frozen=True)
class Observed:
    results: dict[int, Result]
    seen: list[dict[str, object]]
    runs: Path
    err: str


def seen_in(runs):
    return [json.loads(p.read_text()) for p in sorted((runs / "small").rglob("seen.json"))]


@pytest.fixture
def forking(monkeypatch):
    monkeypatch.setattr(server_process, "_SERVER", WARM_SERVER)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    return WATCHED.write(tmp_path_factory.mktemp("watched") / "watched.py")


@pytest.fixture(scope="module")
def observe(watched):
    """Trials 0 and 1 forked; 0 and 1 importing a study that has threads; 2 spawned; all three inline."""
    observations = {}

    def run(isolation):
        if isolation not in observations:
            file = watched
            runs = watched.parent / isolation
            trials = 3
            if isolation == "spawn":
                shutil.copytree(run("fork").runs, runs)
            elif isolation == "importing":
                text = replace(WATCHED, head=dedent(WATCHED.head) + STARTS_THREADS)
                file = text.write(watched.parent / "other_head.py")
                trials = 2
            elif isolation == "fork":
                trials = 2
            mode = "auto" if isolation == "importing" else isolation
            server = REAL_SERVER if isolation == "fork" else WARM_SERVER
            observations[isolation] = observed(file, runs, mode, trials, server)
        return observations[isolation]

    return run


def observed(file, runs, isolation, trials, server):
    count = len(seen_in(runs))
    words = ("run", file, "--isolation", isolation, "--trials", trials, "--runs-dir", runs)
    storage = {"SWEEPER_STORAGE": f"sqlite:///{runs / 'sweeper.db'}"}
    if isolation == "inline":
        ended = python(*PROGRAM, "-c", INLINE, *words, cwd=file.parent, env=storage)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_process, "_SERVER", server)
            ended = command(*words, cwd=file.parent, env={**storage, **CREDENTIALS})
    assert ended.code == 0, ended.err
    results = results_of(trials_in(runs)[count:])
    return Observed(results, seen_in(runs)[count:], runs, ended.err)


@pytest.mark.parametrize("isolation", ["fork", "importing", "spawn"])
def test_forked_and_spawned_trials_have_processes_of_their_own_and_the_digests_of_inline_ones(
    observe, isolation
):
    """Each sets its process up before the first op."""
    inline = observe("inline").results
    other = observe(isolation).results
    assert sorted(other) == ([2] if isolation == "spawn" else [0, 1])
    assert all(r.digest for r in other.values())
    assert differing(other, {number: inline[number] for number in other}) == []
    reports = observe(isolation).seen
    assert len({s["pid"] for s in reports}) == len(reports) == len(other)
    assert all(s["untouched"] for s in reports)
    assert all(s["threads"] == [2, 2] for s in reports)


@pytest.mark.parametrize("isolation", ["fork", "importing", "spawn"])
def test_no_trials_process_has_the_credentials_of_the_database_or_the_cluster(observe, isolation):
    """Neither in the environment as Python has it, nor in what the process was started with."""

    def let_in(mode):
        variables = {
            variable for report in observe(mode).seen for variable in report["environment"]
        }
        opening = {v for v in variables if "SECRET" in v or v.startswith("SWEEPER_STORAGE")}
        return {variable.partition("=")[0] for variable in opening}

    assert let_in(isolation) == set()
    assert let_in("inline") == {"SWEEPER_STORAGE", *CREDENTIALS}, "they were never there"


def test_a_trials_environment_keeps_what_is_its_own(monkeypatch):
    opening = ["SWEEPER_STORAGE", "PGHOST", "PGSERVICEFILE", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"]
    harmless = ["AWS_SECRET_ACCESS_KEY", "PATH", "PG_MY_OWN", "RAYON_NUM_THREADS", "SWEEPER_DEBUG"]
    for name in (*opening, *harmless):
        monkeypatch.setenv(name, "x")
    environment = trial_environment()
    assert environment.keys().isdisjoint(opening)
    assert environment.keys() >= set(harmless)


def test_what_a_module_draws_at_its_top_level_is_the_same_in_every_process(observe):
    drawn = [
        s["drawn"] for mode in ("fork", "importing", "spawn", "inline") for s in observe(mode).seen
    ]
    assert all(d == drawn[0] for d in drawn)


def test_a_trial_that_imports_its_study_is_forked_and_the_run_says_why(observe):
    importing = observe("importing")
    assert "importing the study started threads (my-thread)" in importing.err
    assert "imports the study in its own process" in importing.err
    assert "imports the study in its own process" not in observe("fork").err
    assert [s for s in importing.seen if "\0spawned\0" in str(s["program"])] == []
    spawned = observe("spawn").seen
    assert all("\0spawned\0" in str(s["program"]) for s in spawned), "the control"


@pytest.mark.whole
def test_a_server_that_has_threads_forks_nothing_and_says_so(monkeypatch, watched):
    monkeypatch.setattr(server_process, "_SERVER", ("-P", "-c", SERVER_WITH_THREADS))
    server = WarmServer(target_source(str(watched)))
    loaded = server.loaded()
    assert loaded.cannot_fork == "importing TensorFlow and Keras started threads (a-debugger)"
    with pytest.raises(DefinitionError, match="a-debugger"):
        server.choose_isolation(loaded, "fork")
    server.choose_isolation(loaded, "auto")
    server.close()
    assert server.isolation == "spawn"


# ---------------------------------------------------------------- where the study is defined

GUARDED = """
if __name__ == "__main__":
    results = study.run(workers=2)
    print(json.dumps([t.digest for t in results.trials]))
"""
UNGUARDED = """
print(json.dumps([t.digest for t in study.run(workers=2).trials]))
"""


@pytest.mark.whole
@pytest.mark.usefixtures("forking")
def test_a_study_in_a_script_runs_with_the_results_of_the_same_study_in_a_file(observe, tmp_path):
    one = WATCHED.arguments.replace("trials=2", "trials=1")
    script = replace(WATCHED, tail=UNGUARDED, arguments=one).write(tmp_path / "script.py")
    ended = python(*PROGRAM, script, cwd=tmp_path)
    assert ended.code == 0, ended.err
    expected = {0: observe("fork").results[0]}
    assert json.loads(ended.out) == [expected[0].digest]
    assert differing(expected, results_of(trials_in(tmp_path / "runs"))) == []

    # A later command finds the study's code in the script, which is read up to where it runs it.
    more = command("resume", "small", "--trials", 2, cwd=tmp_path)
    assert more.code == 0, more.err
    assert [t.state for t in trials_in(tmp_path / "runs")] == ["complete"] * 2


@pytest.mark.whole  # by default test_sources.py
@pytest.mark.usefixtures("forking")
def test_a_script_whose_dataset_cannot_be_sent_is_imported_by_its_trials(tmp_path):
    def run(text, *arguments):
        return python(*PROGRAM, text.write(tmp_path / "script.py"), *arguments, cwd=tmp_path)

    guarded = replace(AT_TOP, tail=GUARDED)
    with_argument = run(guarded, "another-learning-rate")
    assert with_argument.code == 1
    assert "study 'small' cannot be sent to the processes that run its trials" in with_argument.err
    epochs = AT_TOP.arguments.replace("epochs=2", 'epochs=2 if __name__ == "__main__" else 3')
    otherwise = run(replace(guarded, arguments=epochs))
    assert otherwise.code == 1
    assert "has another definition when" in otherwise.err
    assert not (tmp_path / "runs").exists()
    ended = run(guarded)
    assert ended.code == 0, ended.err
    swept = sweep(AT_TOP.write(tmp_path / "at_top.py"), tmp_path / "file", isolation="fork")
    assert any("importing the study ran TensorFlow" in text for text in swept.notices)
    assert differing(results_of(swept.trials), results_of(trials_in(tmp_path / "runs"))) == []


# ------------------------------------------------------ trial processes driven by a fake worker


def hear(process, kind):
    """Answer what the trial asks until it says something of ``kind``."""
    message = None
    while not isinstance(message, kind):
        message = process.channel.receive(60)
        assert message is not None, "the trial says nothing"
        if isinstance(message, messages.Suggest):
            process.channel.send(messages.Answered(0.01))
        if isinstance(message, messages.Propose):
            process.channel.send(messages.Answered(True))
    return message


@pytest.mark.usefixtures("forking")
def test_of_two_trial_processes_one_is_killed_and_the_other_stops_with_a_checkpoint(
    watched, tmp_path
):
    launcher = WarmServer(target_source(str(watched)))
    launcher.loaded()
    trials = []
    for number, name in enumerate(("one", "other")):
        (tmp_path / name).mkdir()
        assignment = assignment_in(tmp_path / name, number=number, epochs=10**5, devices="5")
        trials.append(launcher.launch(assignment))
    one, other = trials
    hear(one, messages.Started)
    hear(other, messages.EpochsEnded)  # before its first step, it would stop without a checkpoint
    assert one.wait(0) is None
    one.kill()
    death = one.wait(30)
    assert death == ExitStatus(-signal.SIGKILL)
    assert death.killed
    with pytest.raises((EOFError, OSError)):  # or the other trial holds the pipe open
        list(iter(lambda: one.channel.receive(30), None))
    other.channel.send(messages.Stop())
    stopped = hear(other, messages.StoppedHere)
    assert other.wait(30) == ExitStatus(0)
    [report] = [json.loads(p.read_text()) for p in (tmp_path / "other").rglob("seen.json")]
    assert (report["devices"], report["pid"]) == ("5", other.pid)
    assert (tmp_path / "other" / "checkpoints" / f"step-{stopped.step:09d}").is_dir()
    one.channel.close()
    other.channel.close()
    launcher.close()


def test_a_server_that_is_not_used_ends_with_the_block_and_inline_trials_need_none():
    with begin_server("auto") as server:
        process = psutil.Process(server.pid)
        assert process.is_running()
    assert not process.is_running()
    with begin_server("inline") as server:
        assert server is None
