"""A terminal's screen as text, and a run whose events and clock are fixed."""

from dataclasses import replace

import pyte
from rich.console import Console

from sweeper.records.events import StudyOpened
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
    trials = [TrialStatus(number, state, {}, None, 0, 10) for number, state in enumerate(states)]
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
