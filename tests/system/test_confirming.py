"""Studies with repeats, folds and confirmations, and studies whose search changes, as commands."""

import json
import shutil
from dataclasses import replace

import pytest
from study_files import SHORT, StudyText
from sweeps import RunningCommand, python, sweep, sweep_inline, trials_in

from sweeper.errors import TrialError

ARGUMENTS = 'objective="val_loss", epochs=2, trials=3, sampler="random", audit="off", seed=3'
STUDY = replace(SHORT, arguments=ARGUMENTS)


def _status(here, cwd, study="small"):
    return json.loads(here("status", study, "--json", cwd=cwd).out)


def _confirm(here, cwd, *words):
    return here("confirm", "small", *words, "--workers", 2, "-q", cwd=cwd)


@pytest.mark.whole
def test_a_killed_confirmation_is_resumed_and_equals_one_that_was_not(tmp_path, here):
    searched = tmp_path / "searched"
    searched.mkdir()
    sweep_inline(STUDY, searched)
    outcomes = []
    for name in ("whole", "killed"):
        cwd = tmp_path / name
        shutil.copytree(searched, cwd)
        words = ("--best", 2, "--repeats", 2, "--at-most", 2)
        if name == "killed":
            arguments = ("confirm", "small", *words, "--workers", 1, "-v")
            with RunningCommand(*arguments, cwd=cwd) as running:
                assert running.wait_for("trial 2", "started")
                running.kill_group()
            assert here("resume", "small~confirm", "-q", cwd=cwd).code == 0
        else:
            ended = _confirm(here, cwd, *words)
            assert ended.code == 0, ended.err
            assert "leads with" in ended.out
        trials = trials_in(cwd / "runs", "small~confirm")
        confirmed = _status(here, cwd)["confirmed"]
        outcomes.append(([(t.number, t.seed, t.value, t.digest) for t in trials], confirmed))
    assert outcomes[0] == outcomes[1]
    trials, confirmed = outcomes[0]
    assert len(trials) == 4
    searched = {t.seed for t in trials_in(tmp_path / "whole" / "runs")}
    assert not searched & {seed for _, seed, _, _ in trials}
    best = sorted(trials_in(tmp_path / "whole" / "runs"), key=lambda t: t.value or 0.0)
    assert {configuration["number"] for configuration in confirmed} == {
        best[0].number,
        best[1].number,
    }
    cwd = tmp_path / "whole"
    # Further repeats need not name the configurations again.
    more = _confirm(here, cwd, "--repeats", 3)
    assert more.code == 0, more.err
    assert "6/6 done" in more.out
    assert len(trials_in(cwd / "runs", "small~confirm")) == 6
    assert here("resume", "small~confirm", "--trials", 9, cwd=cwd).code == 2
    other = _confirm(here, cwd, "--trial", 0, "--trial", 2, "--trial", 1)
    assert other.code != 0
    assert "are being confirmed" in other.err
    removed = here("rm", "small", "--yes", cwd=cwd)
    assert removed.code == 0, removed.err
    assert json.loads(here("ls", "--json", cwd=cwd).out) == []
    assert not list((cwd / "runs").glob("small*"))


def test_a_study_without_complete_trials_has_nothing_to_confirm(tmp_path, here):
    with pytest.raises(TrialError):
        sweep_inline(replace(STUDY, model='raise ValueError("no layer")'), tmp_path)
    ended = _confirm(here, tmp_path)
    assert ended.code == 2, ended.err
    assert "has no complete trial yet" in ended.err
    assert here("confirm", "other", cwd=tmp_path).code == 2


FOLDS = """
    from sklearn.model_selection import KFold

    train, validation = list(KFold(2).split(x))[trial.repeat]
    return Data(
        train=(x[train], y[train]),
        validation=(x[validation], y[validation]),
        batch_size=10,
        shuffle=False,
    )
"""
PLAIN = """
import json, sys
import keras, numpy as np, tensorflow as tf
from sklearn.model_selection import KFold
sys.argv = ["small.py"]
import small
from sweeper.train.randomness.seeds import TrialSeeds

tf.config.experimental.enable_op_determinism()


class Given:
    def __init__(self, repeat):
        self.repeat = repeat

    def suggest_float(self, *_given, **_more):
        return 0.01


found = []
for repeat in range(2):
    seeds = TrialSeeds(3, repeat)
    keras.utils.set_random_seed(seeds.child("model"))
    model = small.build_model(Given(repeat))
    data = small.load_data(Given(repeat))
    keras.utils.set_random_seed(seeds.child("training"))
    x, y = data.train
    history = model.fit(
        x, y, epochs=2, batch_size=10, shuffle=False, validation_data=data.validation, verbose=0
    )
    found.append(history.history["val_loss"])
print(json.dumps(found))
"""


@pytest.mark.whole
def test_each_fold_equals_plain_keras_on_the_same_split_and_seed(tmp_path):
    """To the last bit: the layers have no dropout, and the order of the samples is `fit`'s."""
    arguments = ARGUMENTS.replace("trials=3", "trials=2, repeats=2, threads=1")
    study = StudyText(arguments=arguments, data=FOLDS, rate='trial.suggest_float("r", 0.01, 0.01)')
    trials = sweep(study.write(tmp_path / "small.py"), tmp_path / "runs").trials
    swept = [[epoch.metrics["val_loss"] for epoch in trial.epochs] for trial in trials]
    (tmp_path / "plain.py").write_text(PLAIN)
    plain = python("plain.py", cwd=tmp_path)
    assert plain.code == 0, plain.err
    assert swept == json.loads(plain.out.splitlines()[-1])
    assert len({values[-1] for values in swept}) == 2


def test_a_repeat_beyond_the_splits_is_explained(tmp_path, here):
    arguments = ARGUMENTS.replace("epochs=2, trials=3", "epochs=1, trials=2, repeats=2")
    data = FOLDS.replace("[trial.repeat]", "[1 + trial.repeat]")
    failed = sweep_inline(replace(STUDY, arguments=arguments, data=data), tmp_path).trials[1]
    assert failed.state == "failed"
    assert "list index out of range; here trial.repeat is 1: the study has 2 repeats" in (
        failed.error or ""
    )
    assert "[1 + trial.repeat]" in (failed.error or "")
