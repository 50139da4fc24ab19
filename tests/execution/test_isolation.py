"""However a trial's process is made, and wherever its study is defined, the result is the same."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

import pytest
from study_files import StudyText
from sweeps import Result, command, differing, python, results_of, sweep, trials_in

from sweeper.errors import DefinitionError
from sweeper.events import Notice
from sweeper.execution.launch import server_process
from sweeper.execution.launch.environment import trial_environment
from sweeper.execution.launch.launchers import ForkLauncher, SpawnLauncher, WarmServer
from sweeper.execution.launch.sources import target_source
from sweeper.execution.launch.trial_process import ExitStatus, Launcher, TrialProcess
from sweeper.execution.protocol.messages import (
    Assignment,
    Failed,
    Message,
    Started,
    Stop,
    StoppedHere,
)
from sweeper.execution.protocol.questions import Suggest, Suggested
from sweeper.execution.trial.process import EXIT_WORKER_GONE

UNWATCHED = True

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

REAL_SERVERS = True
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

RUNS_TENSORFLOW = "TABLE = keras.Variable(np.zeros(3))"
STARTS_THREADS = """
import threading
threading.Thread(target=threading.Event().wait, name="my-thread", daemon=True).start()
"""
CANNOT_FORK = {
    RUNS_TENSORFLOW: "importing the study ran TensorFlow",
    STARTS_THREADS: "importing the study started threads (my-thread)",
}
"""What a study that is else the same may have at its top level, and what is said of it."""


@dataclass(frozen=True)
class Observed:
    results: dict[int, Result]
    seen: list[dict[str, object]]
    runs: Path
    err: str


def seen_in(runs: Path) -> list[dict[str, object]]:
    return [json.loads(p.read_text()) for p in sorted((runs / "small").rglob("seen.json"))]


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch, forked_servers: tuple[str, ...]) -> None:
    monkeypatch.setattr(server_process, "_SERVER", forked_servers)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WATCHED.write(tmp_path_factory.mktemp("watched") / "watched.py")


def unforkable(head: str, directory: Path) -> Path:
    text = replace(WATCHED, head=dedent(WATCHED.head) + head)
    return text.write(directory / "unforkable.py")


@pytest.fixture(scope="module")
def observe(watched: Path, forked_servers: tuple[str, ...]) -> Callable[[str], Observed]:
    """Trials 0 and 1 forked; 2 of the same study spawned, where it has threads; and all three inline.

    A study that goes on is not rehearsed, and each rehearsal is another import of TensorFlow where
    it is spawned.
    """
    known: dict[str, Observed] = {}

    def run(isolation: str) -> Observed:
        if isolation not in known:
            runs = watched.parent / isolation
            if isolation == "spawn":
                shutil.copytree(run("fork").runs, runs)
                file = unforkable(STARTS_THREADS, watched.parent)
                known[isolation] = observed(file, runs, "auto", 3, forked_servers)
            else:
                trials = 2 if isolation == "fork" else 3
                server = REAL_SERVER if isolation == "fork" else forked_servers
                known[isolation] = observed(watched, runs, isolation, trials, server)
        return known[isolation]

    return run


def observed(
    file: Path,
    runs: Path,
    isolation: str,
    trials: int,
    server: tuple[str, ...],
) -> Observed:
    before = len(seen_in(runs))
    words = ("run", file, "--isolation", isolation, "--trials", trials, "--runs-dir", runs)
    storage = {"SWEEPER_STORAGE": f"sqlite:///{runs / 'sweeper.db'}"}
    if isolation == "inline":
        ended = python(*server, "run", "-c", INLINE, *words, cwd=file.parent, env=storage)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_process, "_SERVER", server)
            ended = command(*words, cwd=file.parent, env={**storage, **CREDENTIALS})
    assert ended.code == 0, ended.err
    results = results_of(trials_in(runs)[before:])
    return Observed(results, seen_in(runs)[before:], runs, ended.err)


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_forked_spawned_and_inline_trials_give_equal_digests(
    observe: Callable[[str], Observed], isolation: str
) -> None:
    inline, other = observe("inline").results, observe(isolation).results
    assert sorted(other) == ([0, 1] if isolation == "fork" else [2])
    assert all(r.digest for r in other.values())
    assert differing(other, {number: inline[number] for number in other}) == []


@pytest.mark.whole
def test_a_study_that_is_spawned_from_its_beginning_gives_the_same(
    observe: Callable[[str], Observed], watched: Path, tmp_path: Path
) -> None:
    spawned = observed(watched, tmp_path / "runs", "spawn", 2, REAL_SERVER)
    assert differing(observe("fork").results, spawned.results) == []


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_every_trial_has_a_process_of_its_own_and_sets_it_up_before_the_first_op(
    observe: Callable[[str], Observed], isolation: str
) -> None:
    seen = observe(isolation).seen
    assert len({s["pid"] for s in seen}) == len(seen) == len(observe(isolation).results)
    assert all(s["untouched"] for s in seen)
    assert all(s["threads"] == [2, 2] for s in seen)


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_no_trials_process_has_the_credentials_of_the_database_or_the_cluster(
    observe: Callable[[str], Observed], isolation: str
) -> None:
    """Neither in the environment as Python has it, nor in what the process was started with."""

    def let_in(how: str) -> set[str]:
        return {
            variable.partition("=")[0]
            for seen in observe(how).seen
            for variable in seen["environment"]
            if "SECRET" in variable or variable.startswith("SWEEPER_STORAGE")
        }

    assert let_in(isolation) == set()
    assert let_in("inline") == {"SWEEPER_STORAGE", *CREDENTIALS}, "they were never there"


def test_a_trials_environment_keeps_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = ["SWEEPER_STORAGE", "PGHOST", "PGSERVICEFILE", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"]
    own = ["AWS_SECRET_ACCESS_KEY", "PATH", "PG_MY_OWN", "RAYON_NUM_THREADS", "SWEEPER_DEBUG"]
    for name in (*opening, *own):
        monkeypatch.setenv(name, "x")
    given = trial_environment()
    assert given.keys().isdisjoint(opening)
    assert given.keys() >= set(own)


def test_inline_trials_share_one_process(observe: Callable[[str], Observed]) -> None:
    seen = observe("inline").seen
    assert len(seen) == 3
    assert len({s["pid"] for s in seen}) == 1


def test_what_a_module_draws_at_its_top_level_is_the_same_in_every_process(
    observe: Callable[[str], Observed],
) -> None:
    drawn = [s["drawn"] for how in ("fork", "spawn", "inline") for s in observe(how).seen]
    assert all(d == drawn[0] for d in drawn)


def test_what_tensorflow_says_of_its_start_is_not_heard_of_its_server(
    observe: Callable[[str], Observed],
) -> None:
    said = observe("fork").err.lower()
    assert "trial 0" in said
    assert [word for word in ("cuda", "initializelog", "onednn") if word in said] == []


def test_a_study_that_cannot_be_forked_is_spawned_and_says_so(
    observe: Callable[[str], Observed],
) -> None:
    said = observe("spawn").err
    assert CANNOT_FORK[STARTS_THREADS] in said
    assert "a Python of its own" in said
    assert "a Python of its own" not in observe("fork").err


@pytest.mark.whole
@pytest.mark.usefixtures("forking")
def test_a_study_that_runs_tensorflow_is_spawned_with_the_same_results_and_says_so(
    observe: Callable[[str], Observed], tmp_path: Path
) -> None:
    shutil.copytree(observe("fork").runs, tmp_path / "runs")
    swept = sweep(unforkable(RUNS_TENSORFLOW, tmp_path), tmp_path / "runs", trials=3)
    said = [e.message for e in swept.events if isinstance(e, Notice)]
    reason = CANNOT_FORK[RUNS_TENSORFLOW]
    assert any(reason in n and "a Python of its own" in n for n in said), said
    assert differing(observe("inline").results, results_of(swept.trials)) == []


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("head", CANNOT_FORK, ids=["tensorflow", "threads"])
def test_a_study_that_cannot_be_forked_is_refused_where_it_is_to_be(
    tmp_path: Path, head: str
) -> None:
    with pytest.raises(DefinitionError, match="cannot be forked") as refused:
        sweep(unforkable(head, tmp_path), tmp_path / "never", isolation="fork")
    assert CANNOT_FORK[head] in str(refused.value)
    assert not (tmp_path / "never").exists()


# ---------------------------------------------------------------- where the study is defined

GUARDED = """
if __name__ == "__main__":
    if "resume" in sys.argv:
        study.resume(workers=2)
    results = study.run(workers=2)
    print(json.dumps([t.digest for t in results.trials]))
"""
UNGUARDED = """
print(json.dumps([t.digest for t in study.run(workers=2).trials]))
"""


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(GUARDED, id="guarded", marks=pytest.mark.whole),
        pytest.param(UNGUARDED, id="unguarded"),
    ],
)
def test_a_study_in_a_script_runs_with_the_results_of_the_same_study_in_a_file(
    observe: Callable[[str], Observed],
    tmp_path: Path,
    tail: str,
    forked_servers: tuple[str, ...],
) -> None:
    one = WATCHED.arguments.replace("trials=2", "trials=1")
    script = replace(WATCHED, tail=tail, arguments=one).write(tmp_path / "script.py")
    ended = python(*forked_servers, "run", script, cwd=tmp_path)
    assert ended.code == 0, ended.err
    expected = {0: observe("fork").results[0]}
    assert json.loads(ended.out) == [expected[0].digest]
    assert differing(expected, results_of(trials_in(tmp_path / "runs"))) == []

    # A later command finds the study's code in the script, whose guard keeps it from running.
    more = command("resume", "small", "--trials", 2, cwd=tmp_path)
    if tail is GUARDED:
        assert more.code == 0, more.err
        assert [t.state for t in trials_in(tmp_path / "runs")] == ["complete"] * 2
    else:
        assert more.code == 1
        assert 'put the call under `if __name__ == "__main__":`' in more.err
        assert "Traceback" not in more.err


@pytest.mark.usefixtures("forking")
def test_a_study_that_runs_itself_when_imported_is_refused(tmp_path: Path) -> None:
    file = StudyText(tail="study.run()").write(tmp_path / "unguarded.py")
    ended = command("run", file, cwd=tmp_path)
    assert ended.code == 1
    assert ended.err.count("error:") == 1
    assert "is run while its own file is being imported" in ended.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("forking")
def test_a_study_in_a_package_is_found_by_its_path_and_again_from_elsewhere(
    tmp_path: Path,
) -> None:
    package = tmp_path / "work" / "mystudies"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "rates.py").write_text("RATE = 0.01\n")
    StudyText(
        head="from .rates import RATE",
        model="""
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(RATE), "mse")
        return model
        """,
        data="return Data(train=(x, y), batch_size=8)",
        tail="""
        other = Study(
            name="other", model=build_model, data=load_data, objective="loss", epochs=1, trials=1,
            sampler="random", audit="off",
        )
        """,
    ).write(package / "deep.py")
    runs = tmp_path / "runs"
    ended = command("run", "mystudies.deep:other", "--runs-dir", runs, cwd=package.parent)
    assert ended.code == 0, ended.err
    more = command("resume", "other", "--trials", 2, "--runs-dir", runs, cwd=tmp_path)
    assert more.code == 0, more.err
    assert [t.state for t in trials_in(runs, "other")] == ["complete"] * 2


# ------------------------------------------------------ trial processes driven by a fake worker


def assignment(directory: Path, number: int = 0, **changes: object) -> Assignment:
    attempt = directory / f"trial-{number}"
    attempt.mkdir(parents=True, exist_ok=True)
    values = {
        "study": "small",
        "number": number,
        "attempt": 1,
        "seed": 0,
        "epochs": 100_000,
        "objective": "loss",
        "deterministic": True,
        "threads": 1,
        "checkpoint_every": "epoch",
        "files": str(attempt / "files"),
        "log": str(attempt / "log.txt"),
        "checkpoints": (str(attempt / "checkpoints"),),
    }
    return Assignment(**{**values, **changes})


def hear(process: TrialProcess, kind: type[Message]) -> Message:
    """Answer what the trial asks until it says something of ``kind``."""
    for _ in range(10_000):
        message = process.channel.receive(60)
        if isinstance(message, Suggest):
            process.channel.send(Suggested(0.01))
        if isinstance(message, kind | Failed):
            return message
        assert message is not None, "the trial says nothing"
    pytest.fail(f"no {kind.__name__} came")


def ends(process: TrialProcess) -> bool:
    """Whether the pipe comes to its end, after what was sent before."""
    try:
        while process.channel.receive(30) is not None:
            continue
    except (EOFError, OSError):
        return True
    return False


@pytest.fixture(scope="module", params=["fork", "spawn"])
def launcher(
    request: pytest.FixtureRequest, watched: Path, forked_servers: tuple[str, ...]
) -> Iterator[Launcher]:
    if request.param == "spawn":
        spawning = SpawnLauncher(target_source(str(watched)))
        yield spawning
        spawning.close()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "_SERVER", forked_servers)
        server = WarmServer(target_source(str(watched)))
    server.loaded()
    launcher = ForkLauncher(server)
    yield launcher
    launcher.close()


@dataclass(frozen=True)
class SideBySide:
    """Two trials at once, of which one is killed and the other is asked to stop after that.

    Attributes:
        before: How the killed one had ended before it was killed.
        death: How it ended then.
        pipe_ended: Whether its pipe came to its end while the other one's was open.
        killed_pid: What the killed one said that its process was.
        stopped: What the other one said last, and ``end`` how it ended; ``other`` is its process.
        directory: Where the other one's files are.
    """

    before: ExitStatus | None
    death: ExitStatus | None
    pipe_ended: bool
    killed_pid: int
    stopped: Message
    end: ExitStatus | None
    other: TrialProcess
    directory: Path


@pytest.fixture(scope="module")
def side_by_side(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    directory = tmp_path_factory.mktemp("side_by_side")
    one = launcher.launch(assignment(directory, 0))
    other = launcher.launch(assignment(directory, 1, devices="5"))
    assert isinstance(hear(one, Started), Started)
    assert isinstance(hear(other, Started), Started)
    before = one.wait(0)
    one.kill()
    death, pipe_ended = one.wait(30), ends(one)
    [seen] = [json.loads(p.read_text()) for p in (directory / "trial-0").rglob("seen.json")]
    other.channel.send(Stop())
    stopped = hear(other, StoppedHere)
    yield SideBySide(
        *(before, death, pipe_ended, seen["pid"], stopped, other.wait(30)),
        other=other,
        directory=directory / "trial-1",
    )
    one.channel.close()
    other.channel.close()


def test_a_trial_process_sees_the_devices_it_is_given_and_stops_with_a_checkpoint(
    side_by_side: SideBySide,
) -> None:
    assert isinstance(side_by_side.stopped, StoppedHere)
    assert side_by_side.end == ExitStatus(0)
    [seen] = [json.loads(p.read_text()) for p in side_by_side.directory.rglob("seen.json")]
    assert seen["devices"] == "5"
    assert seen["pid"] == side_by_side.other.pid != side_by_side.killed_pid
    names = [p.name for p in side_by_side.directory.rglob("step-*") if p.is_dir()]
    assert f"step-{side_by_side.stopped.step:09d}" in names


def test_a_killed_trial_process_is_known_by_its_signal_and_its_pipe_ends(
    side_by_side: SideBySide,
) -> None:
    assert side_by_side.before is None
    assert side_by_side.death == ExitStatus(-signal.SIGKILL)
    assert side_by_side.death.killed
    assert side_by_side.pipe_ended, "the other trial holds the pipe open"


def test_one_trials_death_ends_no_other_trials_pipe(side_by_side: SideBySide) -> None:
    assert side_by_side.death == ExitStatus(-signal.SIGKILL)
    assert isinstance(side_by_side.stopped, StoppedHere), "it heard that it was to stop"
    assert side_by_side.end == ExitStatus(0)


# What a trial does about its pipe is the same code however its process was made.
@pytest.mark.parametrize(
    "launcher", ["fork", pytest.param("spawn", marks=pytest.mark.whole)], indirect=True
)
def test_a_trial_process_whose_pipe_closes_ends_itself(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.launch(assignment(tmp_path))
    hear(process, Started)
    process.channel.close()
    assert process.wait(30) == ExitStatus(EXIT_WORKER_GONE)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
        (None, "vanished (its exit status is not known)"),
    ],
)
def test_an_exit_status_says_how_a_process_ended(code: int | None, message: str) -> None:
    assert ExitStatus(code).describe() == message
    assert ExitStatus(code).killed == (code == -signal.SIGKILL)
