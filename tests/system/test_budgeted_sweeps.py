"""Real trials under Hyperband: the same sweep on any workers, verified, and shown."""

import json
from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import database_url, sweep

from sweeper.records.events import Remark, RungDecided

STUDY = replace(
    SHORT,
    name="budgeted",
    head="from sweeper import Hyperband",
    arguments="""objective="val_loss", epochs=4, trials=4, concurrency=2, sampler="random",
    budget=Hyperband(factor=2), checkpoint_every=Every(steps=1), audit="off\"""",
)
"""Rungs after 1 and 2 epochs; one round of 4 trials, and 7 attempts."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("budgeted")
    STUDY.write(path / "budgeted.py")
    return path


@pytest.fixture(scope="module")
def alone(directory):
    """The sweep of one worker."""
    return sweep(directory / "budgeted.py", directory / "one", workers=1, isolation="inline")


def test_the_trials_of_a_round_go_on_from_rung_to_rung(alone):
    assert sorted(len(t.epochs) for t in alone.trials) == [1, 1, 2, 4]
    assert [t.state for t in alone.trials].count("pruned") == 3
    for trial in alone.trials:
        outcomes = [a.outcome for a in trial.attempts]
        complete = ["complete"] * (trial.state == "complete")
        assert outcomes == ["paused"] * len(trial.rungs) + complete
        assert [r.value for r in trial.rungs] == [
            trial.epochs[r.epochs - 1].metrics["val_loss"] for r in trial.rungs
        ]
        if trial.state == "pruned":
            last = trial.checkpoints[-1]
            assert (last.epoch, last.digest) == (len(trial.epochs), trial.digest)
            assert trial.value == trial.rungs[-1].value
    assert sum(isinstance(e, RungDecided) for e in alone.events) == 2
    messages = [e.message for e in alone.events if isinstance(e, Remark)]
    assert any(
        "rung of bracket 0 after 1 epochs: promoted trial" in message for message in messages
    )


def test_a_promoted_trial_verifies_and_shows_its_rungs(directory, alone, here):
    """A promoted trial's replay is that trial run whole, in one process."""
    whole = next(t for t in alone.trials if t.state == "complete")
    flags = ("--storage", database_url(directory / "one"), "--runs-dir", directory / "one")
    answer = here("verify", "budgeted", "--trial", whole.number, *flags, cwd=directory)
    assert answer.code == 0, answer.out + answer.err
    assert f"trial {whole.number} holds" in answer.out
    details = here("show", "budgeted", whole.number, *flags, cwd=directory)
    assert "promoted" in details.out
    assert "4 trials; promoted: " in details.out
    read = json.loads(here("show", "budgeted", whole.number, "--json", *flags, cwd=directory).out)
    assert [(r["epochs"], r["promoted"]) for r in read["rungs"]] == [(1, True), (2, True)]
    assert len(read["rungs"][0]["decision"]["compared"]) == 4
