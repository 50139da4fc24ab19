"""A trial that is killed while it fills a cache of `tf.data` in its directory."""

import pytest
from study_files import DIES_ONCE, StudyText
from sweeps import sweep

DATA = """
import tensorflow as tf

def slow(row):
    time.sleep(0.005)
    return row

def pairs_of(x, y, directory):
    def prepared(row, label):
        return tf.ensure_shape(tf.numpy_function(slow, [row], tf.float32), (16,)), label

    pairs = tf.data.Dataset.from_tensor_slices((x, y)).map(prepared)
    return pairs.cache(str(directory / "features")).shuffle(40, seed=3).batch(8)
"""

KEEPS_THEM = """
from sweeper.run.trial import run

run.discard_unfinished_caches = lambda directory: None
"""


def sweep_with_cache(directory, *, killed, head=""):
    directory.mkdir()
    study = StudyText(
        eager=True,
        head=DIES_ONCE + DATA + head,
        data="return Data(train=pairs_of(x[:160], y[:160], trial.directory), validation=(x[160:], y[160:]))",
        callbacks="DiesOnce(trial, 8, kept=4)" if killed else "",
        arguments="""objective="val_loss", epochs=2, trials=1, sampler="random", audit="off",
        checkpoint_every=Every(steps=4)""",
    )
    swept = sweep(study.write(directory / "small.py"), directory / "runs", workers=1)
    return swept.trials[0]


def test_the_trial_is_resumed_and_fills_it_again(tmp_path):
    whole = sweep_with_cache(tmp_path / "whole", killed=False)
    killed = sweep_with_cache(tmp_path / "killed", killed=True)
    assert [attempt.outcome for attempt in killed.attempts] == ["crashed", "complete"]
    assert (killed.digest, killed.epochs) == (whole.digest, whole.epochs)
    files = {file.name for file in (tmp_path / "killed").rglob("features*")}
    assert files == {"features.index", "features.data-00000-of-00001"}


@pytest.mark.whole
def test_with_what_was_left_of_it_the_trial_would_fail(tmp_path):
    """The control."""
    trial = sweep_with_cache(tmp_path / "control", killed=True, head=KEEPS_THEM)
    assert [attempt.outcome for attempt in trial.attempts] == ["crashed", "failed"]
    assert "lockfile" in trial.attempts[-1].error
