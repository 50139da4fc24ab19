"""Studies that are extended, killed on the way and extended again, against one as long from the start."""

from dataclasses import replace

import pytest
from study_files import DIES_ONCE, SHORT
from sweeps import database_url, sweep, trials_in

from sweeper.checkpoint.reading import load_newest
from sweeper.records.lengths import Extension

STOPPING = (
    'keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)'
)
SETTINGS = 'objective="val_loss", trials=2, sampler="random", audit="off"'


def write(path, epochs, *, killed=False):
    """The study's file; ``killed``: its first trial is, in its third epoch."""
    kills = ", *([] if trial.number else [DiesOnce(trial, 5, kept=4)])"
    callbacks = f"{STOPPING}{kills}" if killed else STOPPING
    head = DIES_ONCE if killed else ""
    arguments = f"{SETTINGS}, epochs={epochs}"
    return replace(SHORT, head=head, callbacks=callbacks, arguments=arguments).write(path)


def digest_at_end(trial, runs):
    """Of the model as training left it."""
    end = runs / trial.study / f"trial-{trial.number:05d}" / "end"
    checkpoint = load_newest([end], pytest.fail)
    assert checkpoint.digest != trial.digest, "the end of training changes this model"
    return checkpoint.digest


def test_a_study_extended_twice_and_killed_equals_one_as_long_from_its_beginning(tmp_path, here):
    whole = sweep(
        write(tmp_path / "whole.py", 5), tmp_path / "whole", workers=1, trials=1, isolation="inline"
    ).trials
    file = write(tmp_path / "small.py", 2, killed=True)
    runs = tmp_path / "runs"
    short = sweep(file, runs, workers=1, isolation="inline").trials
    assert short[0].digest != whole[0].digest

    further = sweep(file, runs, workers=1, extension=Extension(3))
    assert further.trials[0].epochs == whole[0].epochs[:3]
    for trial, original, ends in zip(further.trials, short, (["crashed"], []), strict=True):
        assert [a.outcome for a in trial.attempts] == ["complete", *ends, "complete"]
        assert len(trial.epochs) == 3
        assert trial.epochs[:2] == original.epochs
        assert trial.lengths[0] == original.lengths[0]
    assert further.results.status.trials[0].epochs == 3

    flags = ("--storage", database_url(runs), "--runs-dir", runs, "--workers", 1)
    extended = here("extend", "small", "--epochs", 5, "--trial", 0, *flags, cwd=tmp_path)
    assert extended.code == 0, extended.err
    assert "study 'small': trial 0 continues to 5 epochs" in extended.err
    assert "epochs: 5 for trial 0; 3 for trial 1" in extended.out
    first, second = trials_in(runs)
    assert second == further.trials[1], "what is not extended is not touched"
    expected = whole[0].digest, whole[0].value, whole[0].epochs
    assert (first.digest, first.value, first.epochs) == expected
    assert [length.epochs for length in first.lengths] == [2, 3, 5]
    assert [a.start_step for a in first.attempts] == [0, 4, 4, 6]
    assert digest_at_end(first, runs) == digest_at_end(whole[0], tmp_path / "whole")

    verified = here("verify", "small", "--trial", 0, *flags[:4], cwd=tmp_path)
    assert verified.code == 0, verified.out + verified.err


@pytest.mark.whole
def test_a_trial_that_stopped_by_itself_stops_there_again(tmp_path):
    stopping = f"{STOPPING[:-1]}, min_delta=1e9)".replace("patience=9", "patience=1")
    arguments = f"{SETTINGS}, epochs=4".replace("trials=2", "trials=1")
    file = replace(SHORT, callbacks=stopping, arguments=arguments).write(tmp_path / "small.py")
    runs = tmp_path / "runs"
    (original,) = sweep(file, runs, workers=1).trials
    assert len(original.epochs) < 4, "control: it stopped early"
    (after,) = sweep(file, runs, workers=1, extension=Extension(6)).trials
    assert (after.state, after.digest, after.value) == ("complete", original.digest, original.value)
    epochs = len(original.epochs)
    assert [(e.epochs, e.trained) for e in after.lengths] == [(4, epochs), (6, epochs)]
    assert digest_at_end(after, runs)
