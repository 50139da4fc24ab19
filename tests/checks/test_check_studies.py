"""``sweeper check`` as one types it: on the studies that are kept here, and on two that are bad."""

import json
from pathlib import Path

import pytest
from short_trials import PLAIN, UNVALIDATED
from study_files import StudyText

from sweeper.cli.main import main

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.py"))
SOUND = StudyText(
    model=PLAIN.replace("keras.layers", "keras.layers.Dropout(0.3), keras.layers"),
    arguments='objective="val_loss", epochs=2, trials=2, sampler="random"',
)
SHARED = StudyText(
    name="shared",
    head="HEAD = keras.layers.Dense(1, name='head')",
    model="model = keras.Sequential([keras.Input((16,)), HEAD])\n"
    "model.compile(keras.optimizers.SGD(0.01), 'mse')\nreturn model",
)


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """What the command prints of a file, in this process, which has imported everything."""
    monkeypatch.chdir(tmp_path)

    def check(file, code):
        ended = main(["check", str(file), "--workers", "2", "--json"])
        said = capsys.readouterr()
        assert ended == code, said.out + said.err
        assert not (tmp_path / "runs").exists(), "a check touches no database and keeps no file"
        return json.loads(said.out)

    return check


def test_a_sound_study_holds_in_everything(checked, tmp_path):
    assert_it_holds(checked(SOUND.write(tmp_path / "sound.py"), 0))


@pytest.mark.whole  # larger networks, longer epochs, two replicas
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_study_kept_here_holds(file, checked):
    assert_it_holds(checked(file, 0))


def assert_it_holds(report):
    assert report["holds"] is True
    assert [f for f in report["findings"] if f["level"] != "note"] == []
    held = "\n".join(report["held"])
    for promise in (
        "a trial starts from scratch",
        "can be captured",
        "the same seed gives the same",
        "repeat bit for bit in another process",
        "killed (SIGKILL) after step",
        "the objective",
    ):
        assert promise in held
    estimate = report["estimate"]
    assert estimate["study_seconds"] >= estimate["trial_seconds"] > estimate["startup_seconds"] > 0
    assert estimate["disk_bytes"] > estimate["checkpoint_bytes"] > 0
    assert report["steps"] > 0


MADE_ONCE = StudyText(
    name="made_once",
    head="""
    import tensorflow as tf

    NUMBERS = np.random.default_rng(0)
    SCALE = NUMBERS.normal(size=16).astype("float32")
    ORDER = tf.data.Dataset.range(200).shuffle(200).batch(8)
    """,
    model=PLAIN,
    data="""
    noise = NUMBERS.normal(size=x.shape).astype("float32")
    order = ORDER.map(lambda at: (tf.gather(x + noise, at), tf.gather(y, at)))
    return Data(train=order, validation=(x * SCALE, y), batch_size=8)
    """,
    arguments='objective="val_loss", epochs=2, trials=2, sampler="random"',
)


PICKED = StudyText(
    name="picked",
    head="""
    import random

    class Picked(keras.utils.PyDataset):
        def __init__(self, x, y):
            super().__init__()
            self.x, self.y = x, y

        def __len__(self):
            return 8

        def __getitem__(self, index):
            rows = [random.choice(range(len(self.x))) for _ in range(8)]
            return self.x[rows], self.y[rows]
    """,
    model=PLAIN,
    data="return Data(train=Picked(x, y))",
    arguments='objective="loss", epochs=3, trials=2, sampler="random"',
)


ONE_STEP = StudyText(
    name="one_step",
    model=PLAIN,
    data="return Data(train=(x, y), validation=(x, y), batch_size=len(x))",
    arguments='objective="val_loss", epochs=5, trials=2, sampler="random"',
)
"""A trial of it is killed at the end of an epoch."""


@pytest.mark.whole
@pytest.mark.parametrize("text", [ONE_STEP, MADE_ONCE, PICKED], ids=lambda text: text.name)
def test_what_is_not_made_anew_for_each_trial_or_each_batch_holds(text, checked, tmp_path):
    assert_it_holds(checked(text.write(tmp_path / f"{text.name}.py"), 0))


def test_a_shared_layer_is_an_error_on_independence(checked, tmp_path):
    file = SHARED.write(tmp_path / "shared.py")
    [finding] = checked(file, 4)["findings"]
    assert (finding["level"], finding["check"]) == ("error", "independence")
    assert "module attribute shared.HEAD" in finding["message"]


ONCE_AN_EPOCH = StudyText(
    name="library",
    head="""
    import math

    class Decay(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen = math.epochs_seen = getattr(math, "epochs_seen", 0) + 1
            if seen >= 2:
                rate = self.model.optimizer.learning_rate
                self.model.optimizer.learning_rate = float(rate) * 0.5
    """,
    model=PLAIN,
    data=UNVALIDATED,
    callbacks="Decay()",
    arguments='objective="loss", epochs=6, trials=2, sampler="random"',
)
"""Its callback keeps state where no checkpoint finds it, and acts by it."""


def test_state_that_no_checkpoint_finds_is_seen_when_a_killed_trial_is_resumed(checked, tmp_path):
    callback = "Decay"
    file = ONCE_AN_EPOCH.write(tmp_path / "forgetful.py")
    report = checked(file, 4)
    [finding] = report["findings"]
    assert (finding["level"], finding["check"]) == ("error", "resume"), finding
    assert finding["message"].startswith("killed after step ")
    assert "Some state that training changes is not in checkpoints" in finding["message"]
    assert f"look in callback {callback} ({file}:{finding['line']})" in finding["message"]
    assert f"class {callback}(" in file.read_text().splitlines()[finding["line"] - 1]
    assert not any("bit" in held for held in report["held"])
