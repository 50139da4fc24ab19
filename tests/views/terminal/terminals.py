"""A terminal's screen as text, and a run whose events and clock are fixed."""

from dataclasses import replace

import pyte
from rich.console import Console

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Notice,
    StepsDone,
    StudyOpened,
    TrainingStarted,
)
from sweeper.records.results import BestTrial, StudyStatus, TrialStatus
from sweeper.views.terminal.live import LiveProgress


class Screen:
    """A terminal of some size, which shows what is written to it."""

    def __init__(self, columns, lines):
        self._screen = pyte.HistoryScreen(columns, lines)
        # As a terminal in its usual mode, where a new line begins at the left.
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)
        self.console = Console(
            file=self,
            force_terminal=True,
            color_system=None,
            width=columns,
            height=lines,
            _environ={"TERM": "xterm"},
        )

    def write(self, text):
        self._stream.feed(text)
        return len(text)

    def flush(self):
        pass

    @property
    def lines(self):
        """What stands there, without the empty rest of lines and of the screen."""
        text = "\n".join(line.rstrip() for line in self._screen.display)
        return text.rstrip("\n").split("\n")


class Watched:
    """A run that is drawn on a screen, whenever it is asked for."""

    def __init__(self, columns, lines, verbosity="normal"):
        self.now = 0.0
        self.screen = Screen(columns, lines)
        self.listener = LiveProgress(self.screen.console, verbosity, 0, lambda: self.now)

    def after(self, seconds, *events):
        self.now += seconds
        for event in events:
            self.listener(event)

    @property
    def shown(self):
        self.listener.refresh()
        return self.screen.lines


def with_trials(status, **counts):
    """Return the status with so many trials in each state, which are numbered in this order."""
    states = [state for state, count in counts.items() for _ in range(count)]
    trials = [TrialStatus(number, each, {}, None, 0, 10) for number, each in enumerate(states)]
    return replace(status, **counts, trials=tuple(trials))


STATUS = with_trials(
    StudyStatus(
        "digits",
        16,
        objective="val_accuracy",
        direction="maximize",
        best=BestTrial(1, 0.9312, {"learning_rate": 0.003}),
    ),
    complete=2,
    pruned=1,
    interrupted=1,
)
OPENED = StudyOpened(STATUS, 3, "sqlite:///runs/sweeper.db", "sweeper resume digits")


def first_moment(run):
    """Three trials run: one is resumed, one is in its first epoch, one is being prepared."""
    run.after(
        0,
        OPENED,
        AttemptStarted(3, 2),
        AttemptStarted(4, 1),
        AttemptStarted(5, 1),
        TrainingStarted(3, {"learning_rate": 0.001}, 10, 120, 4 * 120 + 60, 4),
        TrainingStarted(4, {"learning_rate": 0.0001}, 10, 120, 0),
    )
    run.after(1, StepsDone(3, 4, 4 * 120 + 85), StepsDone(4, 0, 30))


def second_moment(run):
    """A trial has failed, another one leads, and a checkpoint was written."""
    metrics = {"loss": 0.21, "val_accuracy": 0.95}
    run.after(
        2,
        EpochFinished(3, 4, 5 * 120, metrics, 4.0),
        CheckpointKept(3, 5 * 120, 1_300_000, 0.034, 0.002),
        EpochFinished(4, 0, 120, {"loss": 0.7, "val_accuracy": 0.51}, 3.0),
        AttemptEnded(5, 1, "failed", None, "FactoryError: the model factory returned None"),
        Notice(
            "trial 4: the checkpoint step-000000120 does not verify; going on with the one before it"
        ),
    )
    run.after(16, EpochFinished(3, 9, 10 * 120, metrics, 4.0), AttemptEnded(3, 2, "complete", 0.95))
    run.after(1, StepsDone(4, 1, 150))
