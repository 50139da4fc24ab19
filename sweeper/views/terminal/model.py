"""State of a run as text: the counts of its study, and its best trial or leading configuration.

The counts are those of the database's status, which also has the trials of other workers. A trial of
this run that ended after the latest count is added, so a line about its end counts it.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rich.text import Text

from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import cost_sign
from sweeper.records import events
from sweeper.records.configurations import (
    ConfigurationRecord,
    configurations_of,
    leader_sentence,
)
from sweeper.records.printing import trials_named
from sweeper.records.results import BestTrial, Params, StudyStatus, TrialStatus, leader_of
from sweeper.views.formats import params_text, time_text, value_text
from sweeper.views.tables import counts_line

_RESULTS = ("complete", "pruned", "failed")
_SHOWN = ("pruned", "failed", "running", "interrupted", "paused", "waiting")
_MOST_NUMBERS = 6


class RunState:
    """State of a run, updated by events; safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._lock = threading.Lock()
        self._opened: events.StudyOpened | events.ChecksOpened | None = None
        self._status = StudyStatus("", 0)
        self._best: BestTrial | None = None
        self._states: dict[int, str] = {}
        self._params: dict[int, Params] = {}
        self._ended: dict[int, TrialStatus] = {}
        self._checked = 0
        self._stopping: events.RunStopping | None = None
        self._doing = "opening the study"

    def apply(self, event: events.Event) -> None:
        """Apply one event. Events of attempts without a start are accepted."""
        # Slots report from their threads while another thread draws.
        with self._lock:
            if isinstance(event, events.StudyOpened | events.ChecksOpened):
                self._opened = event
            match event:
                case events.StudyOpened() | events.StudyCounted():
                    self._status = event.status
                    self._lead(event.status.best)
                    # Another worker may have resumed a trial that stopped here.
                    lasting = ("running", *_RESULTS)
                    self._states = {n: s for n, s in self._states.items() if s in lasting}
                case events.AttemptStarted():
                    self._doing = ""
                    self._states[event.trial] = "running"
                case events.TrainingStarted():
                    self._params[event.trial] = event.params
                case events.AttemptEnded():
                    self._end(event)
                case events.RungDecided():
                    self._states.update(dict.fromkeys(event.ended, "pruned"))
                case events.TrialVerified() | events.CheckpointMeasured():
                    self._checked += 1
                case events.RunStopping():
                    self._stopping = event
                case events.Doing(trial=None):
                    self._doing = event.what

    def _end(self, event: events.AttemptEnded) -> None:
        has_result = event.outcome in _RESULTS
        over = has_result if event.over is None else event.over
        if over:
            state: str = event.outcome if has_result else "failed"
        elif event.outcome == "paused":
            state = "paused"
        else:
            # A trial that takes another one's result waits for it until the next count.
            state = "interrupted" if event.reuses is None else "waiting"
        self._states[event.trial] = state
        params = self._params.pop(event.trial, {})
        if event.outcome == "complete":
            ended = TrialStatus(event.trial, "complete", params, event.value, 0, None)
            self._ended[event.trial] = ended
        if not self._is_repeated and event.outcome == "complete" and event.value is not None:
            self._lead(BestTrial(event.trial, event.value, params))

    def _lead(self, trial: BestTrial | None) -> None:
        if trial is None or math.isnan(trial.value):
            return
        sign = cost_sign(self._status.direction)
        if self._best is None or sign * trial.value < sign * self._best.value:
            self._best = trial

    @property
    def name(self) -> str:
        """Return the study's name; empty before it is opened."""
        opened = self._opened
        if opened is None:
            return ""
        return opened.status.study if isinstance(opened, events.StudyOpened) else opened.study

    def brief(self, *, leads: bool = True) -> str:
        """Return the end of a line of the log: finished and total trials, and the best so far if it ``leads``."""
        with self._lock:
            if self._opened is None:
                return ""
            if isinstance(self._opened, events.ChecksOpened):
                return f" [{self._checks(self._opened)}]"
            current = self._current_status()
            return f" [{current.finished}/{current.target} done{self._leader(current) if leads else ''}]"

    def lines(self, stop: str) -> Iterator[Text]:
        """Return the lines of a display: counts, the best trial, and the effect of ``stop``.

        ``stop`` is the user's action to stop the run; empty if it is over.
        """
        with self._lock:
            seconds = (f"  {time_text(self._clock() - self._start)} so far", "dim")
            doing = [Text(f"{self._doing} ...", style="dim")] if self._doing else []
            if self._opened is None:
                return iter(doing)
            if isinstance(self._opened, events.ChecksOpened):
                counts = f"  {self._checks(self._opened)}"
                lines = [Text.assemble((self._opened.study, "bold"), counts, seconds)]
            else:
                current = self._current_status()
                lines = [
                    counts_line(current, _SHOWN).append(*seconds),
                    self._best_line(current),
                    *doing,
                ]
            if stop:
                lines += self._advice(stop)
            return iter(lines)

    def _checks(self, opened: events.ChecksOpened) -> str:
        return f"{self._checked}/{opened.total} {opened.done}"

    def _current_status(self) -> StudyStatus:
        """Return the status with the events since it was read; a result in it is never replaced."""
        status = self._status
        states: dict[int, str] = {trial.number: trial.state for trial in status.trials}
        states |= {n: s for n, s in self._states.items() if states.get(n) not in _RESULTS}
        counts = Counter(states.values())
        # Each round of a race raises the total, maybe after the status was read.
        target = max(status.target, counts.total())
        counts["waiting"] = target - (counts.total() - counts["waiting"])
        counted: Any = {state: counts[state] for state in ("complete", *_SHOWN)}
        current = replace(status, target=target, **counted)
        if self._is_repeated:
            return replace(current, configurations=self._configurations())
        return current

    def _configurations(self) -> tuple[ConfigurationRecord, ...]:
        """Return the configurations with the results that are counted, compared as in the status."""
        status = self._status
        repeating = self._repeating
        counted = {t.number for t in status.trials if t.state in _RESULTS}
        newer = [t for n, t in self._ended.items() if n not in counted]
        if not newer:
            return status.configurations
        earlier = [t for t in status.trials if t.number not in self._ended or t.number in counted]
        definition: dict[str, Any] = {"repeats": repeating.repeats}
        if repeating.confirmed:
            definition = {"confirm": repeating.to_confirm()}
        return configurations_of([*earlier, *newer], status.direction, definition, compared=False)

    @property
    def _is_repeated(self) -> bool:
        return not self._repeating.is_single

    @property
    def _repeating(self) -> Repeating:
        opened = self._opened
        return opened.repeating if isinstance(opened, events.StudyOpened) else Repeating()

    def _leader(self, current: StudyStatus) -> str:
        best = self._best
        if self._status.objectives:
            return ""
        if self._is_repeated:
            leader = leader_of(current.configurations)
            if leader is None:
                return ", no configuration complete"
            return f", {leader.named} leads, mean {value_text(leader.value)}"
        if best is None:
            return ", no best yet"
        return f", best {value_text(best.value)} of trial {best.number}"

    def _best_line(self, current: StudyStatus) -> Text:
        status = self._status
        best = self._best
        if status.objectives:
            return Text(
                f"objectives: {', '.join(objective.name for objective in status.objectives)}", "dim"
            )
        if self._is_repeated:
            sentence = leader_sentence(current.configurations)
            return Text(sentence or "no configuration is complete yet")
        if best is None:
            return Text("best: none yet", "dim")
        return Text.assemble(
            f"best: trial {best.number}  ",
            (f"{status.objective} {value_text(best.value)}", "bold cyan"),
            f"  {params_text(best.params)}",
        )

    def _advice(self, stop: str) -> list[Text]:
        """Return the effect of ``stop``, or, after it, which trials have not stopped and how to resume."""
        opened = self._opened
        if not isinstance(opened, events.StudyOpened):
            return [Text(f"{stop} stops; the results so far are stored", style="dim")]
        resume = opened.resume_command
        if self._stopping is None:
            return [Text.assemble((f"{stop} checkpoints and stops; resume with: ", "dim"), resume)]
        running = [n for n, state in sorted(self._states.items()) if state == "running"]
        few = len(running) <= _MOST_NUMBERS
        which = trials_named(running) if few else f"{len(running)} trials"
        message = f"stopping: {which} until the end of a step and a checkpoint; {stop} again kills"
        if self._stopping.at_once:
            message = f"killing {which}; resumed from the newest checkpoint"
        return [
            Text(message if running else "stopping", style="bold yellow"),
            Text.assemble(("resume with: ", "dim"), resume),
        ]
