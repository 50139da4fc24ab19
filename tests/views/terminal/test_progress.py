"""Progress beyond what cli/printed.txt shows: told by threads and over time, and in a notebook.

In a notebook it is one display that is updated in place, whatever the number of epochs.
"""

import asyncio
import html
import io
import re
import subprocess
import sys
import threading
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
from notebooks import kernel
from terminals import OPENED, Watched

from sweeper.declarations.repeating import Repeating
from sweeper.records import events
from sweeper.records.results import StudyStatus
from sweeper.views.terminal import live
from sweeper.views.terminal.lines import LineProgress
from sweeper.views.terminal.live import MOST_LINES, NotebookProgress, is_notebook, progress_listener


def test_threads_may_tell_it_at_once():
    run = Watched(80, 24)

    def tell(worker):
        for trial in range(worker * 4, worker * 4 + 4):
            run.after(
                0, events.AttemptStarted(trial, 1), events.TrainingStarted(trial, {}, 10, 120, 0)
            )
            list(run.listener.state.lines("Ctrl-C"))
            run.after(0, events.AttemptEnded(trial, 1, "complete", 0.5))

    with run.listener:
        run.after(0, OPENED)
        threads = [threading.Thread(target=tell, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert any("16/16 done, 1 pruned" in line for line in run.shown)


def test_a_long_first_epoch_is_told_of_every_ten_seconds():
    moment = 0.0
    stream = io.StringIO()
    listener = LineProgress(stream, clock=lambda: moment)
    for step in range(45):
        listener(events.StepsDone(4, 0, step))
        moment += 1.0
    assert re.findall(r"at step (\d+)", stream.getvalue()) == ["0", "10", "20", "30", "40"]


class Cell:
    """A display that remembers everything it showed."""

    def __init__(self):
        self.shown = []
        self.plain = []

    def display(self, content, *, raw):
        assert raw
        self.shown.append(content["text/html"])
        self.plain.append(content["text/plain"])

    update = display


def text_of(markup):
    """What a reader sees of the HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """Nothing is shown again by itself, however slow the machine is."""
    monkeypatch.setattr(live, "REDRAW_SECONDS", 3600.0)


def test_the_cell_shows_what_a_terminal_shows_and_how_to_go_on():
    cell = Cell()
    with NotebookProgress(cell, lambda: 0.0) as progress:
        for event in (
            OPENED,
            events.AttemptStarted(3, 2),
            events.TrainingStarted(3, {"kind": "<b>x</b>"}, 10, 120, 540, 4),
            events.EpochFinished(3, 4, 600, {"val_accuracy": 0.9, "loss": 0.1}, 2.0),
        ):
            progress(event)
        progress.show()
        text = text_of(cell.shown[-1])
        for part in ("digits  3/16 done, 1 pruned, 1 running", "epoch 6/10", "600/1200"):
            assert part in text
        assert "trial 3 attempt 2 resumed at step 540 kind=<b>x</b>" in text_of(cell.shown[-1])
        assert "<b>" not in cell.shown[-1]
        assert "Interrupting the kernel checkpoints and stops" in text_of(cell.shown[-1])
        progress(events.RunStopping("stopping"))
        progress.show()
        assert "Interrupting the kernel again kills" in text_of(cell.shown[-1])
        progress(events.AttemptEnded(3, 2, "interrupted"))
    assert "Interrupting" not in cell.shown[-1], "the run is over, and the cell keeps its state"
    assert cell.plain[-1] == "digits [3/16 done, best 0.9312 of trial 1]"


@pytest.mark.parametrize("outcome", ["crashed", "failed"])
@pytest.mark.parametrize("over", [True, False])
def test_a_trial_is_done_with_its_last_attempt(outcome, over):
    with LineProgress(stream := io.StringIO()) as progress:
        progress(OPENED)
        progress(events.AttemptEnded(3, 2, outcome, error="OOM", over=over))
    assert f"[{4 if over else 3}/16 done" in stream.getvalue().splitlines()[-1]


def test_a_thousand_epochs_and_ends_leave_a_short_cell():
    cell = Cell()
    with NotebookProgress(cell) as progress:
        progress(OPENED)
        for trial in range(100):
            progress(events.AttemptStarted(trial, 1))
            progress(events.TrainingStarted(trial, {}, 10, 10, 0))
            for epoch in range(10):
                progress(events.EpochFinished(trial, epoch, epoch * 10, {"val_accuracy": 0.5}, 0.1))
            progress(events.AttemptEnded(trial, 1, "complete", 0.5))
            progress(events.Notice("the same again"))
    assert len(cell.shown) == 2, "events alone show nothing: the clock does"
    text = text_of(cell.shown[-1])
    assert len(text.splitlines()) < 20
    assert text.count("attempt 1 complete") + text.count("the same again") == MOST_LINES
    assert f"({200 - MOST_LINES} earlier lines)" in text


def test_only_a_kernel_is_a_notebook(monkeypatch):
    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    for shell in (None, SimpleNamespace()):
        ipython.get_ipython = lambda shell=shell: shell
        assert not is_notebook()
        assert isinstance(progress_listener(io.StringIO()), LineProgress)
    kernel = SimpleNamespace(kernel=object())
    ipython.get_ipython = lambda: kernel
    assert isinstance(progress_listener(io.StringIO()), NotebookProgress)
    assert isinstance(progress_listener(io.StringIO(), "quiet"), LineProgress)


RUN = """
import sys, threading
from sweeper.views.terminal.live import progress_listener
from terminals import OPENED
from sweeper.records.events import AttemptStarted, EpochFinished, TrainingStarted

with progress_listener(sys.stderr) as progress:
    def work():
        for event in (OPENED, AttemptStarted(3, 1), TrainingStarted(3, {}, 50, 120, 0)):
            progress(event)
        for epoch in range(50):
            progress(EpochFinished(3, epoch, epoch * 120, {"val_accuracy": 0.5}, 0.1))
        progress.show()
    slot = threading.Thread(target=work)
    slot.start()
    slot.join()
"""


def test_a_real_kernel_updates_one_display_and_prints_no_line(tmp_path):
    async def executed():
        async with kernel(tmp_path) as running:
            return await running.execute(RUN)

    messages = asyncio.run(executed())
    kinds = [kind for kind, _ in messages]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert len({content["transient"]["display_id"] for _, content in messages}) == 1
    assert "digits" in messages[-1][1]["data"]["text/html"]


FAILING = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell("import sweeper\\nstudy = sweeper.load_study('nowhere.py')")
shell.run_cell("import keras\\nkeras.layers.Dense('many')")
"""


@pytest.mark.whole
def test_an_error_in_a_cell_shows_the_users_lines_and_the_message_alone():
    ran = subprocess.run(
        [sys.executable, "-c", FAILING], text=True, capture_output=True, check=True
    )
    frames, message = ran.stdout.split("StudyFileError: ", 1)
    assert [line.strip() for line in frames.splitlines() if line.strip(" ^")][1:] == [
        "study = sweeper.load_study('nowhere.py')"
    ]
    assert message.startswith("nowhere.py does not exist")
    assert "/keras/" in message, "an error that is not sweeper's is shown with all of its lines"


def test_the_lines_of_a_race_fit_count_all_rounds_and_lead_with_what_they_count():
    """The status was read before the round that raised the total; one source has counts and standing."""
    confirm = Repeating(2, (4, 8), 4)
    stream = io.StringIO()
    opened = replace(OPENED, status=StudyStatus("race", 4, direction="maximize"), repeating=confirm)
    long = {f"a_parameter_with_a_long_name_{n}": 0.123456789 for n in range(9)}
    with LineProgress(stream) as progress:
        progress(opened)
        for number in range(6):
            progress(events.AttemptStarted(number, 1))
            progress(events.TrainingStarted(number, long, 3, 10, 0))
            progress(events.EpochFinished(number, 0, 10, long, 1.0))
            progress(events.AttemptEnded(number, 1, "complete", 0.5 + number % 2 / 10))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 100 for line in lines if line.startswith("trial")), lines
    assert any("[1/4 done, no configuration complete]" in line for line in lines)
    assert lines[-5].endswith("… 1.0s [4/5 done]")
    assert lines[-1].endswith("[6/6 done, configuration 8 leads, mean 0.6]")
    with LineProgress(stream := io.StringIO()) as progress:
        progress(OPENED)
        progress(events.AttemptEnded(0, 1, "failed", None, "ValueError: " + "why " * 40))
    assert stream.getvalue().count("why") == 40, "an error is whole"
