"""A study killed again and again ends as one that never was: the second and the third promise."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from interruptions import INTERRUPTED_STUDY
from sweeps import RunningCommand, command, differing, results_of, trials_in

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
        trial, step = path.parts[-4], int(path.name.removeprefix("step-"))
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
        before = unfinished(runs)
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
        killed.commits += bool(unfinished(runs) - before)
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
