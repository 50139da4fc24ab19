"""A rehearsal finds by itself what one process can know, and reports what two are needed for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from corpus import ALLOWED, INLINE, REFUSED, UNDONE, expected, rehearsed_by_default
from rehearsals import PLAIN, UNVALIDATED, rehearsed
from study_files import StudyText

from sweeper.checks.judging import Judgement, judge_runs
from sweeper.replay.reports import Finding, RehearsalReport
from sweeper.run.trial import rehearsal

LOSS = 'objective="loss", epochs=1, trials=2, sampler="random"'

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
    arguments=LOSS,
)
URANDOM = StudyText(
    model=PLAIN,
    data="""
    x = x + np.frombuffer(os.urandom(x.size), np.uint8).reshape(x.shape).astype("float32") / 1e3
    return Data(train=(x, y), batch_size=8)
    """,
    arguments=LOSS,
)
LAYER = StudyText(
    head="""
    class Noisy(keras.layers.Layer):
        def call(self, x):
            import tensorflow as tf
            drawn = tf.numpy_function(self.drawn, [], tf.float32)
            return x + tf.ensure_shape(drawn, ())

        def drawn(self):
            return np.float32(os.urandom(1)[0] / 100.0)

        def compute_output_shape(self, shape):
            return shape

    def with_noise(trial):
        inner = well(trial)
        model = keras.Sequential([keras.Input((16,)), Noisy(), *inner.layers])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model
    """,
    tail="""
    well = build_model
    study.model = with_noise
    """,
    model=PLAIN,
    data=UNVALIDATED,
    arguments=LOSS,
)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on learning how long a step takes."""
    monkeypatch.setattr(rehearsal, "_TIMED_SECONDS", 0.01)


def twice(text: StudyText, directory: Path) -> Judgement:
    file = text.write(directory / "study_twice.py")
    reports = [rehearsed(file, directory / side) for side in ("one", "two")]
    read = [rehearsed(file, directory / side, "read") for side in ("three", "four")]
    assert all(report.complete for report in (*reports, *read)), [r.findings for r in reports]
    return judge_runs(reports[0], reports[1], (read[0].data, read[1].data), deterministic=True)


def line_with(directory: Path, text: str) -> str:
    file = directory / "study_twice.py"
    numbers = [i for i, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    return f"{file}:{numbers[-1]}"


def test_a_clock_in_a_callbacks_arithmetic_is_caught_by_name(tmp_path: Path) -> None:
    [finding] = twice(CLOCK, tmp_path).findings
    assert (finding.level, finding.check) == ("error", "determinism")
    assert finding.message.startswith("callback Jitter does not repeat")
    assert "its on_epoch_end left optimizer variable sgd/learning_rate" in finding.message
    assert str(finding.line) == line_with(tmp_path, "def on_epoch_end")


def test_the_systems_randomness_in_the_data_is_caught_by_name(tmp_path: Path) -> None:
    [finding] = twice(URANDOM, tmp_path).findings
    assert (finding.level, finding.check) == ("error", "determinism")
    assert "the data of load_data differ" in finding.message
    assert "x of Data(train=…) differs" in finding.message
    assert str(finding.line) == line_with(tmp_path, "def load_data")


def test_a_layer_that_draws_in_python_is_caught_by_name(tmp_path: Path) -> None:
    [finding] = twice(LAYER, tmp_path).findings
    assert finding.message.startswith("step 1 does not repeat")
    assert "of the user's own code it runs Noisy" in finding.message
    assert str(finding.line) == line_with(tmp_path, "class Noisy")


def test_the_same_studies_without_it_repeat(tmp_path: Path) -> None:
    calm = replace(CLOCK, head=CLOCK.head.replace("now() % 1", "0.5"))
    judgement = twice(calm, tmp_path)
    assert judgement.repeats
    assert judgement.findings == []


KINDS = {
    "dataset": """
    import tensorflow as tf
    order = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64)
    return Data(train=order.batch(8))
    """,
    "function": """
    def epoch_of(epoch):
        order = np.random.default_rng([trial.seed, epoch]).permutation(len(x))
        for at in range(0, len(x), 8):
            yield x[order[at : at + 8]], y[order[at : at + 8]]
    return Data(train=epoch_of)
    """,
    "pydataset": """
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(x) // 8
        def __getitem__(self, index):
            return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]
    return Data(train=Batches())
    """,
    "long": """
    return Data(train=(np.tile(x, (30, 1)), np.tile(y, 30)), batch_size=8)
    """,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_repeats_in_an_order_of_its_own(tmp_path: Path, kind: str) -> None:
    text = StudyText(
        model=PLAIN,
        data=KINDS[kind],
        arguments='objective="loss", epochs=3, trials=2, sampler="random"',
    )
    judgement = twice(text, tmp_path)
    assert judgement.findings == []
    assert "two epochs give the data in different orders, and each repeats" in judgement.held


def test_data_in_one_order_are_a_note(tmp_path: Path) -> None:
    judgement = twice(
        StudyText(
            model=PLAIN,
            data="return Data(train=(x, y), batch_size=8, shuffle=False)",
            arguments=LOSS,
        ),
        tmp_path,
    )
    [finding] = judgement.findings
    assert (finding.level, finding.check) == ("note", "data")
    assert "the same batches in the same order" in finding.message


def only(report: RehearsalReport, level: str = "error") -> Finding:
    [finding] = [f for f in report.findings if f.level == level]
    return finding


@pytest.mark.parametrize(
    ("text", "check", "message", "at"),
    [
        (StudyText(model="raise KeyError('colour')"), "build", "KeyError: 'colour'", "raise Key"),
        (
            StudyText(metrics='"accuracy"', arguments='objective="val_acc", epochs=1, trials=1'),
            "objective",
            "reports 'accuracy', 'loss', 'val_accuracy', 'val_loss'",
            "val_acc",
        ),
        (StudyText(data="y = y[:150]"), "data", "150", "def load_data"),
        (
            StudyText(
                head="""
                import threading

                class Locked(keras.callbacks.Callback):
                    def __init__(self):
                        super().__init__()
                        self.lock = threading.Lock()

                    def on_epoch_begin(self, epoch, logs=None):
                        self.lock = threading.Lock()
                """,
                model=PLAIN,
                data=UNVALIDATED,
                callbacks="Locked()",
                arguments=LOSS,
            ),
            "capture",
            "callback Locked: attribute 'lock'",
            "class Locked",
        ),
        (StudyText(model="return None"), "build", "build_model returned None", "def build_model"),
    ],
    ids=["raises", "objective", "data", "capture", "nothing"],
)
def test_what_cannot_be_trained_is_an_error_with_its_line(
    tmp_path: Path, text: StudyText, check: str, message: str, at: str
) -> None:
    file = text.write(tmp_path / "study_twice.py")
    report = rehearsed(file, tmp_path / "run")
    finding = only(report)
    assert not report.complete
    assert finding.check == check
    assert message in finding.message
    assert str(finding.line) == line_with(tmp_path, at)


DRAWN_BEFORE = StudyText(
    head="""
    NUMBERS = np.random.default_rng(3)

    def generated(trial):
        keras.utils.set_random_seed(int(NUMBERS.integers(1 << 30)))
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model
    """,
    tail="study.model = generated",
    data="""
    order = NUMBERS.permutation(len(x))
    return Data(train=(x[order], y[order]), batch_size=8)
    """,
    arguments=LOSS,
)


def test_a_generator_of_the_module_repeats_in_processes_that_build_one_trial(
    tmp_path: Path,
) -> None:
    judgement = twice(DRAWN_BEFORE, tmp_path)
    assert judgement.repeats
    assert judgement.findings == []


def test_a_trial_that_was_built_after_another_begins_otherwise_and_that_is_no_finding(
    tmp_path: Path,
) -> None:
    file = DRAWN_BEFORE.write(tmp_path / "study_before.py")
    together = rehearsed(file, tmp_path / "together", "together")
    assert together.complete
    assert together.findings == ()
    assert together.built != rehearsed(file, tmp_path / "alone", "read", number=1).built


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize(
    "file", rehearsed_by_default([*REFUSED, *INLINE]), ids=lambda file: file.stem
)
def test_what_trials_of_one_process_would_share_is_told_with_its_line(
    file: Path, tmp_path: Path
) -> None:
    report = rehearsed(file, tmp_path, "together")
    message = expected(file).strip().partition(": ")[2]
    first = next(f for f in report.findings if f.level == "error")
    assert first.check == "independence"
    assert first.line is not None
    assert first.line.file.startswith(str(file.parent))
    assert first.message == message


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize(
    "file", rehearsed_by_default([*ALLOWED, *UNDONE]), ids=lambda file: file.stem
)
def test_trials_of_a_sound_study_share_nothing_in_one_process_either(
    file: Path, tmp_path: Path
) -> None:
    report = rehearsed(file, tmp_path, "together")
    assert report.complete
    assert [f for f in report.findings if f.level == "error"] == []
