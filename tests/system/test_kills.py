"""A study killed again and again ends as one that never was: the second and the third promise."""

import random
import time
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from databases import postgresql_database
from interruptions import INTERRUPTED_STUDY
from study_files import StudyText
from sweeps import RunningCommand, command, differing, results_of, trials_in

from sweeper.db.database import Database
from sweeper.db.repository import Repository

STEPS_AN_EPOCH = 20
INSIDE = ("make_directory", "create", "write", "fsync", "fsync_directory", "rename", "remove_tree")


@dataclass
class Kills:
    """What was hit, over one study."""

    kills: int = 0
    commits: int = 0
    runs: int = 0


def unfinished(runs):
    return {p for p in runs.rglob(".*-step-*") if p.is_dir()}


def steps_kept(runs):
    """How many steps of a study are in checkpoints, over all trials."""
    furthest = {}
    for path in runs.glob("*/trial-*/attempt-*/checkpoints/step-*"):
        trial = path.parts[-4]
        step = int(path.name.removeprefix("step-"))
        furthest[trial] = max(step, furthest.get(trial, 0))
    return sum(furthest.values())


def killed_sweep(whole, study, runs, *, kills, seed):
    """Run the study of ``whole`` under ``kills`` SIGKILLs to its process group."""
    chance = random.Random(seed)
    part = 0.75 * steps_kept(whole.runs) / (kills - kills // 3)
    killed = Kills()
    flags = ["--workers", 2, "--runs-dir", runs]
    words = ["run", whole.file, *flags]
    while killed.kills < kills:
        env = {}
        inside = killed.kills % 3 == 2
        if inside:
            env["SWEEPER_TEST_KILL_INSIDE"] = f"{chance.choice(INSIDE)}:{chance.randint(1, 12)}"
        leftovers = unfinished(runs)
        killed.runs += 1
        with RunningCommand(*words, cwd=whole.file.parent, env=env) as run:
            if inside:
                code = run.end()
            else:
                due = part * (killed.kills - killed.kills // 3 + chance.random())
                run.wait_for(" attempt ", "learning_rate=")
                while steps_kept(runs) < due and run.process.poll() is None:
                    time.sleep(0.02)
                time.sleep(chance.uniform(0, 0.1))
                run.kill_group()
                code = run.process.returncode
        if code == 0:
            break
        assert code == -9, f"{env}: {run.err}"
        killed.kills += 1
        killed.commits += bool(unfinished(runs) - leftovers)
        words = ["resume", study, *flags]
    last = command(*words, cwd=whole.file.parent)
    assert last.code == 0, last.err
    return killed, trials_in(runs, study)


def check(whole, killed, trials):
    attempts = [attempt for trial in trials for attempt in trial.attempts]
    resumed = [a for a in attempts if a.number > 1]
    past_zero = [a for a in resumed if a.start_step]
    inside_epochs = [a for a in past_zero if a.start_step % STEPS_AN_EPOCH]
    outcomes = Counter(a.outcome for a in attempts)
    assert differing(whole.results, results_of(trials)) == []
    assert [t.number for t in trials] == list(range(len(whole.results)))
    for trial in trials:
        assert [a.outcome for a in trial.attempts].count("complete") == 1
        assert trial.attempts[-1].outcome == "complete"
        starts = [a.start_step for a in trial.attempts if a.start_step is not None]
        assert starts == sorted(starts), "an attempt began before what an earlier one had reached"
    assert set(outcomes) == {"complete", "lost"}
    assert len(past_zero) >= len(resumed) / 2
    assert inside_epochs
    assert killed.commits


REPEATED = StudyText(
    rate='trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)',
    arguments="""objective="val_loss", epochs=12, trials=12, repeats=3, sampler="tpe",
    concurrency=2, audit="off", seed=5, checkpoint_every=Every(steps=7)""",
)
CONFIRM = ("confirm", "small", "--best", 3, "--repeats", 2, "--at-most", 4)


def repeated_and_confirmed(cwd, storage, workers, *, kills):
    """Run the study and confirm it, each under half of ``kills`` SIGKILLs to its group; what came of it."""
    cwd.mkdir()
    REPEATED.write(cwd / "small.py")
    chance = random.Random(kills)
    for first, name in ((("run", "small.py"), "small"), (CONFIRM, "small~confirm")):
        words = first
        flags = ("--workers", workers, "--storage", storage)
        for _ in range(kills // 2):
            with RunningCommand(*words, *flags, "-v", cwd=cwd) as running:
                for _ in range(chance.randint(1, 9)):
                    if not running.wait_for("epoch"):
                        break
                running.kill_group()
            words = ("resume", name)
        ended = command(*words, *flags, "-q", cwd=cwd)
        assert ended.code == 0, ended.err
    with Database.open(storage, create=False) as database:
        repository = Repository(database)
        return {
            study: (
                [(t.number, t.seed, t.params, t.value, t.digest) for t in repository.trials(study)],
                [
                    configuration.to_json()
                    for configuration in repository.status(study).configurations
                ],
            )
            for study in ("small", "small~confirm")
        }


@pytest.mark.chaos  # by default runs/test_repeated_configurations.py, system/test_confirming.py
def test_a_study_with_repeats_and_its_confirmation_end_alike_under_kills(tmp_path):
    whole = repeated_and_confirmed(
        tmp_path / "whole", f"sqlite:///{tmp_path}/whole/sweeper.db", 1, kills=0
    )
    trials, configurations = whole["small"]
    assert len({digest for *_, digest in trials}) == 12, "the control: trials can be told apart"
    assert (len(configurations), len({seed for _, seed, *_ in trials})) == (4, 3)
    for workers, kills in ((1, 4), (2, 10)):
        with postgresql_database() as server:
            directory = tmp_path / f"{workers}-{kills}"
            assert repeated_and_confirmed(directory, server.url, workers, kills=kills) == whole


SEED = 76
"""Of when kills come: those between commits leave a third of the study to the last one."""


@pytest.fixture(scope="session")
def short(short):
    """With a trial for each worker."""
    assert "trials=3" in short.arguments
    return replace(short, arguments=short.arguments.replace("trials=3", "trials=2"))


def test_kills_change_no_result(whole, tmp_path):
    """Two kills between commits, and one from within one."""
    killed, trials = killed_sweep(whole, "small", tmp_path / "runs", kills=3, seed=SEED)
    assert killed.kills >= 2
    check(whole, killed, trials)
    assert not unfinished(tmp_path / "runs"), "a resumed trial removes what dead attempts left"


@pytest.mark.chaos
def test_two_hundred_kills_change_no_result(whole, tmp_path):
    many = INTERRUPTED_STUDY.arguments.replace("trials=6", 'trials=40, audit="off"')
    whole = type(whole).of(replace(INTERRUPTED_STUDY, arguments=many), tmp_path)
    killed, trials = killed_sweep(whole, "small", tmp_path / "killed", kills=200, seed=2)
    assert killed.kills >= 150
    check(whole, killed, trials)
