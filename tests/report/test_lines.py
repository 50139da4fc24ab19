"""Plain lines: stable, one an event worth one; and where they take the table's place."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sweeper.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Event,
    Notice,
    StepsDone,
    StudyOpened,
    TrainingStarted,
)
from sweeper.report.lines import LineProgress
from sweeper.report.live import LiveProgress, can_redraw, progress_listener

OPENED = StudyOpened(
    "digits", 16, 3, 5, "val_accuracy", "maximize", 2, "sqlite:///runs/sweeper.db", "sweeper resume"
)
RUN: list[Event] = [
    OPENED,
    AttemptStarted(4, 1),
    TrainingStarted(4, {"learning_rate": 0.001, "layer": "my conv\n"}, 5, 45, 0),
    StepsDone(4, 0, 20),
    EpochFinished(4, 0, 45, {"loss": 0.21, "val_accuracy": 0.9312}, 1.23),
    CheckpointKept(4, 45, 1000),
    AttemptEnded(4, 1, "complete", 0.95),
    AttemptStarted(3, 2),
    TrainingStarted(3, {}, 5, 45, 90),
    AttemptEnded(3, 2, "failed", None, "ValueError: two\n  lines"),
    Notice("trials are\nspawned"),
]
LINES = [
    "study digits: 3/16 done, 2 workers, storage sqlite:///runs/sweeper.db",
    'trial 4 attempt 1 started learning_rate=0.001 layer="my conv\\n"',
    "trial 4 epoch 1/5 val_accuracy=0.9312 loss=0.21 1.2s",
    "trial 4 attempt 1 complete value=0.95",
    "trial 3 attempt 2 resumed at step 90",
    "trial 3 attempt 2 failed ValueError: two lines",
    "notice: trials are spawned",
]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_lines_are_these_and_only_these() -> None:
    stream = io.StringIO()
    with LineProgress(stream) as listener:
        for event in RUN:
            listener(event)
    assert stream.getvalue().splitlines() == LINES


def test_a_password_in_the_databases_url_is_not_printed() -> None:
    stream = io.StringIO()
    LineProgress(stream)(replace(OPENED, storage="postgresql://me:secret@host/db"))
    assert "postgresql://me:***@host/db" in stream.getvalue()
    assert "secret" not in stream.getvalue()


def test_each_line_is_written_at_once_whole() -> None:
    written: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    listener = LineProgress(Recorder())
    for event in RUN:
        listener(event)
    assert written == [f"{line}\n" for line in LINES]


@pytest.mark.parametrize(
    ("environment", "redraws"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "CI": "false", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "xterm", "CI": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_redraws_unless_it_is_asked_not_to(
    environment: dict[str, str],
    redraws: bool,
) -> None:
    assert can_redraw(Terminal(), environment) is redraws
    assert not can_redraw(io.StringIO(), environment)


def test_the_choice_follows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(progress_listener(Terminal()), LiveProgress)
    assert isinstance(progress_listener(io.StringIO()), LineProgress)


def test_what_is_final_stays_above_the_table_and_the_table_goes() -> None:
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with LiveProgress(console) as listener:
        for event in RUN:
            listener(event)
        drawn = stream.getvalue()
    text = stream.getvalue()
    for line in (LINES[3], LINES[5], LINES[6]):
        assert text.count(line) == 1
    assert "16 done" in text
    assert text.endswith("\x1b[2K"), "the table must be erased at the end"
    assert not drawn.endswith("\x1b[2K")
