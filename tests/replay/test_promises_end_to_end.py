"""State that a resume loses is an error whatever stands beside it, and measured time is none, in each verb."""

from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import database_url, sweep

from sweeper.checks import check
from sweeper.checks.verify import VerifyRequest, verify_study
from sweeper.run.options import WorkerOptions

COUNTED = """
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
"""
TIMED = """
    import time

    class Timed(keras.callbacks.Callback):
        "Measures epochs into an attribute, an array, a list, rounded, and into the logs."

        def __init__(self):
            super().__init__()
            self.seconds = np.zeros(8)
            self.rounded = []

        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            took = time.perf_counter() - self.began
            self.seconds[epoch] = took
            self.rounded.append(round(took, 1))
            logs["seconds"] = took
"""
LEFT_OUT = """
    import time

    class LeavesOut(keras.callbacks.Callback):
        "Keeps one attribute, and leaves out another and a dictionary in which time is measured too."

        def __init__(self):
            super().__init__()
            self.kept = 0
            self.left = 0
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
"""
ARGUMENTS = 'objective="val_loss", epochs=3, trials=1, sampler="random"'


def text(head, callbacks):
    return replace(SHORT, head=head, callbacks=callbacks, arguments=ARGUMENTS)


def test_check_names_what_a_resume_loses_whatever_is_measured_beside_it(tmp_path):
    head = COUNTED + TIMED + LEFT_OUT
    callbacks = "Counted(trial.directory), LeavesOut(), Timed()"
    names = ("attribute 'count': ", "'left': ", "'inner'['epochs']: ", "lost on resume")
    report = check.check_study(str(text(head, callbacks).write(tmp_path / "study.py")))
    [finding] = [f for f in report.findings if f.check == "resume"]
    assert finding.level == "error", report.findings
    assert not report.holds
    assert not any(held.startswith("killed") and "callbacks" in held for held in report.held)
    for name in (*names, " undisturbed, ", " resumed"):
        assert name in finding.message, finding.message


@pytest.mark.whole
def test_audits_are_alike_and_verify_holds_where_only_time_is_measured(tmp_path):
    """Into an array, a list and the logs."""
    runs = tmp_path / "runs"
    swept = sweep(text(TIMED, "Timed()").write(tmp_path / "study.py"), runs, workers=1)
    exactness = swept.results.status.exactness
    assert exactness.intervals == exactness.alike > 0
    request = VerifyRequest(
        study="small",
        which=0,
        interrupt=False,
        seed=0,
        options=WorkerOptions(1, database_url(runs), runs),
        listener=lambda _: None,
    )
    (trial,) = verify_study(request).trials
    assert trial.verdict == "holds"
    assert [f.message for f in trial.findings if f.level == "error"] == []
    notes = " ".join(f.message for f in trial.findings if f.level == "note")
    assert "callback Timed" in notes, "said, as no error"
