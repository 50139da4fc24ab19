"""``sweeper check`` as one types it: on the studies that are kept here, and on two that are bad."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from disk_contents import contents
from short_trials import PLAIN, UNVALIDATED
from study_files import SHORT, StudyText

from sweeper.cli.main import main

LOSS = 'objective="loss", epochs=1, trials=2, sampler="random"'
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
    """What the command prints of a study, in this process, which has imported everything."""
    monkeypatch.chdir(tmp_path)

    def check(study, code):
        file = study if isinstance(study, Path) else study.write(tmp_path / f"{study.name}.py")
        originals = contents(tmp_path), contents(file.parent)
        ended = main(["check", str(file), "--workers", "2", "--json"])
        output = capsys.readouterr()
        assert ended == code, output.out + output.err
        assert (contents(tmp_path), contents(file.parent)) == originals, "the disk is as it was"
        return json.loads(output.out)

    return check


def test_a_sound_study_holds_in_everything(checked):
    assert_it_holds(checked(SOUND, 0))


@pytest.mark.whole  # larger networks, longer epochs, two replicas
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_study_kept_here_holds(file, checked):
    assert_it_holds(checked(file, 0))


def assert_it_holds(report):
    assert report["holds"] is True
    assert [f for f in report["findings"] if f["level"] != "note"] == []
    promises = "\n".join(report["held"])
    for promise in (
        "a trial starts from scratch",
        "can be captured",
        "the same seed gives the same",
        "repeat bit for bit in another process",
        "killed (SIGKILL) after step",
        "the objective",
    ):
        assert promise in promises
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
def test_what_is_not_made_anew_for_each_trial_or_each_batch_holds(text, checked):
    assert_it_holds(checked(text, 0))


def test_a_shared_layer_is_an_error_on_independence(checked):
    [finding] = checked(SHARED, 4)["findings"]
    assert (finding["level"], finding["subject"]) == ("error", "independence")
    assert "module attribute shared.HEAD" in finding["message"]


CHANGED_BY_A_RESUME = StudyText(
    model=PLAIN,
    head="""
    class Idle(keras.callbacks.Callback):
        pass

    def first(trial):
        mark = trial.directory.parent / "begun"
        begun = mark.exists()
        mark.touch()
        return not begun
    """,
    data=UNVALIDATED,
    callbacks="*[Idle()] * first(trial)",
    arguments=LOSS,
)


def test_a_resume_that_ends_in_an_error_is_reported_with_the_error(checked):
    [finding] = [
        candidate
        for candidate in checked(CHANGED_BY_A_RESUME, 4)["findings"]
        if candidate["subject"] == "resume"
    ]
    assert (
        "which the same trial without a kill reached: its process ended with RestoreError: "
        in (finding["message"])
    )
    assert (
        "is of a training with callback Idle, and this one has no callbacks" in finding["message"]
    )


LOCKED = """
import threading

class Locked(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def on_epoch_begin(self, epoch, logs=None):
        self.lock = threading.Lock()
"""


CLOCK = StudyText(
    head="""
    from time import time as now

    class Jitter(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rate = float(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = rate * (1 + 1e-2 * (now() % 1))
    """,
    model=PLAIN,
    data=UNVALIDATED,
    callbacks="Jitter()",
    arguments='objective="loss", epochs=3, trials=2, sampler="random"',
)
URANDOM = StudyText(
    model=PLAIN,
    data="""
    x = x + np.frombuffer(os.urandom(x.size), np.uint8).reshape(x.shape).astype("float32") / 1e3
    return Data(train=(x, y), batch_size=8)
    """,
    arguments=LOSS,
)


def line_with(text, file="small.py"):
    lines = Path(file).read_text().splitlines()
    return max(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("text", "check", "message", "fragment"),
    [
        (StudyText(model="raise KeyError('colour')"), "build", "KeyError: 'colour'", "raise Key"),
        (
            StudyText(metrics='"accuracy"', arguments='objective="val_acc", epochs=1, trials=1'),
            "objective",
            "reports 'accuracy', 'loss', 'val_accuracy', 'val_loss'",
            'objective="val_acc"',
        ),
        (StudyText(data="y = y[:150]"), "data", "150", "data=load_data"),
        (
            StudyText(
                head=LOCKED, model=PLAIN, data=UNVALIDATED, callbacks="Locked()", arguments=LOSS
            ),
            "capture",
            "callback Locked: attribute 'lock'",
            "callbacks=build_callbacks",
        ),
        (StudyText(model="return None"), "build", "build_model returned None", "model=build_model"),
        (StudyText(model="import nowhere"), "installation", "'nowhere' is not inst", "import now"),
        (CLOCK, "determinism", "at step 25: optimizer variable 1 (sgd/learning_rate)", "class Jit"),
        pytest.param(
            *(URANDOM, "determinism", "at step 1: model variable 0 (", "def build_model"),
            marks=pytest.mark.whole,
        ),
    ],
    ids=["raises", "objective", "data", "capture", "nothing", "package", "clock", "random bytes"],
)
def test_what_does_not_train_or_not_repeat_is_an_error_with_its_line(
    text, check, message, fragment, checked
):
    report = checked(text, 1 if check == "installation" else 4)
    [finding] = [candidate for candidate in report["findings"] if candidate["level"] == "error"]
    assert finding["subject"] == check
    assert message in finding["message"]
    assert (Path(finding["file"]).name, finding["line"]) == ("small.py", line_with(fragment))
    assert not any("bit for bit" in promise for promise in report["held"])


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


def test_state_that_no_checkpoint_finds_is_seen_when_a_killed_trial_is_resumed(checked):
    report = checked(ONCE_AN_EPOCH, 4)
    [finding] = report["findings"]
    assert (finding["level"], finding["subject"]) == ("error", "resume"), finding
    assert finding["message"].startswith("killed after step ")
    assert "Some state that training changes is not in checkpoints" in finding["message"]
    assert "look in callback Decay (" in finding["message"]
    assert finding["line"] == line_with("class Decay(", "library.py")
    assert not any("bit" in promise for promise in report["held"])


LOST = replace(
    SHORT,
    head="""
    import time

    class Counted(keras.callbacks.Callback):
        "Counts epochs in a file, which no checkpoint holds."

        def __init__(self, folder):
            super().__init__()
            self.file = Path(str(folder)) / "count.txt"
            self.count = 0

        def on_epoch_end(self, epoch, logs=None):
            seen = int(self.file.read_text()) if self.file.exists() else 0
            self.file.write_text(str(seen + 1))
            self.count = seen + 1

    class Timed(keras.callbacks.Callback):
        "Measures epochs into an array, a list, rounded, and into the logs."

        def __init__(self):
            super().__init__()
            self.seconds = np.zeros(8)
            self.rounded = []

        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            took = logs["seconds"] = time.perf_counter() - self.began
            self.seconds[epoch] = took
            self.rounded.append(round(took, 1))

    class LeavesOut(keras.callbacks.Callback):
        "Keeps one attribute, and leaves out another and a dictionary in which time is measured too."

        def __init__(self):
            super().__init__()
            self.kept = self.left = 0
            self.inner = {"took": 0.0, "epochs": 0}

        def on_epoch_end(self, epoch, logs=None):
            self.kept += 1
            self.left += 1
            self.inner["took"] = time.perf_counter()
            self.inner["epochs"] += 1

        def get_state(self):
            return {"kept": self.kept}

        def set_state(self, state):
            self.kept = state["kept"]
    """,
    callbacks="Counted(trial.directory), LeavesOut(), Timed()",
    arguments='objective="val_loss", epochs=3, trials=1, sampler="random"',
)


def test_what_a_resume_loses_is_named_whatever_is_measured_beside_it(checked):
    report = checked(LOST, 4)
    [finding] = [candidate for candidate in report["findings"] if candidate["subject"] == "resume"]
    assert finding["level"] == "error", report["findings"]
    assert not any(
        promise.startswith("killed") and "callbacks" in promise for promise in report["held"]
    )
    for name in ("attribute 'count': ", "'left': ", "'inner'['epochs']: ", "lost on resume"):
        assert name in finding["message"], finding["message"]
