"""A worker with no database: it answers what a rehearsal asks, and hears it out.

It speaks to the real trial process through the real launcher. Parameters are drawn as the study
draws them, from its sampler or grid and its seed, for the first trials: those see no results yet.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.definition import StudySettings
from sweeper.errors import Interrupted, ParameterError
from sweeper.execution.channel import (
    Assignment,
    CheckpointCommitted,
    Failed,
    Finished,
    Message,
    Started,
    StoppedHere,
    Suggest,
    Suggested,
    Warned,
)
from sweeper.execution.rehearsing import Rehearsal, Rehearsed, Rehearsing
from sweeper.execution.replaying import Replay
from sweeper.execution.trial_process import ExitStatus, Launcher, next_message
from sweeper.search.grids import grid_size
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spec import SamplerSpec

__all__ = ["Draws", "Heard", "assignment_for", "drive"]

_LOOK_AROUND = 0.2
_LAST_WORDS = 10.0


class Draws:
    """The parameters of a study's first trials, drawn without a database.

    Args:
        spec: How the study draws them.
    """

    def __init__(self, spec: SamplerSpec) -> None:
        # Two trials are drawn, and neither may wait for the other's result.
        window = None if spec.window is None else max(2, spec.window)
        self._spec = dataclasses.replace(spec, window=window, pruner=None)
        self._points = None if spec.grid is None else grid_size(spec.grid)

    def session(self, number: int) -> SearchSession:
        """The search of trial ``number``; of a grid with fewer points, of the last one's."""
        if self._points is not None:
            number = min(number, self._points - 1)
        return open_search(self._spec, number)


@dataclass
class Heard:
    """What one process said, and how it ended.

    Attributes:
        report: Of a rehearsal; empty where it never came to that.
        stage: What it was doing last.
        checkpoints: Path and size by step.
        failed: Its last words, if it failed as a trial.
        started_after: Seconds from its launch to its first step; None where it never came to that.
        seconds: From its launch to its end.
    """

    report: dict[str, Any] = field(default_factory=dict)
    stage: str = "starting"
    checkpoints: dict[int, tuple[Path, int]] = field(default_factory=dict)
    failed: Failed | None = None
    warnings: list[str] = field(default_factory=list)
    started_after: float | None = None
    seconds: float = 0.0
    ended: bool = False
    status: ExitStatus | None = None


def assignment_for(
    settings: StudySettings,
    place: Path,
    rehearsal: Rehearsal,
    *,
    attempts: int = 1,
    replay: Replay | None = None,
) -> Assignment:
    """The assignment of a rehearsal whose files are below ``place``."""
    place.mkdir(parents=True, exist_ok=True)
    return Assignment(
        study=settings.name,
        number=0,
        attempt=attempts,
        seed=settings.seed,
        epochs=settings.epochs,
        objective=settings.objective,
        further_objectives=tuple(o.name for o in settings.further_objectives),
        deterministic=settings.deterministic,
        threads=settings.threads,
        checkpoint_every="epoch",
        files=str(place / "files"),
        log=str(place / f"log-{attempts}.txt"),
        checkpoints=tuple(str(place / f"attempt-{attempt}") for attempt in range(1, attempts + 1)),
        replay=replay,
        rehearsal=rehearsal,
    )


def drive(
    launcher: Launcher,
    assignment: Assignment,
    draws: Draws,
    stopping: threading.Event,
    *,
    until: int | None = None,
    tell: Callable[[Rehearsing], None] = lambda _: None,
    patience: float | None = None,
) -> Heard:
    """Run one process to its end, or until it has a checkpoint at step ``until``.

    Args:
        launcher: Starts it.
        assignment: What to do.
        draws: Where parameters come from.
        stopping: Once set, the process is killed.
        until: The step whose checkpoint is all that is wanted.
        tell: Told what the process is about to do.
        patience: Seconds after which it is killed; None for as long as it takes.

    Raises:
        ExecutionError: It could not be started.
        Interrupted: ``stopping`` was set.
    """
    heard, began = Heard(), time.monotonic()
    sessions: dict[int, SearchSession] = {}
    number = assignment.number
    process = launcher.launch(assignment)
    try:
        while not heard.ended:
            if stopping.is_set():
                msg = "the check was stopped"
                raise Interrupted(msg)
            if patience is not None and time.monotonic() - began > patience:
                break
            message, gone = next_message(process, _LOOK_AROUND)
            if message is None:
                if gone:
                    break
                continue
            if isinstance(message, Suggest):
                answer = _answer(sessions, draws, number, message)
                process.channel.send(answer, waits=False)
            elif isinstance(message, Rehearsing):
                number, heard.stage = message.number, message.stage
                tell(message)
            else:
                _note(heard, message, time.monotonic() - began)
                heard.ended = heard.ended or (until is not None and until in heard.checkpoints)
        if until is None and heard.ended:
            heard.status = process.wait(_LAST_WORDS)
    except OSError:
        # It is gone, and how is what its status tells.
        heard.status = process.wait(_LAST_WORDS)
    finally:
        process.kill()
        heard.status = process.wait(_LAST_WORDS) or heard.status
        process.channel.close()
    heard.seconds = time.monotonic() - began
    return heard


def _answer(
    sessions: dict[int, SearchSession], draws: Draws, number: int, question: Suggest
) -> Suggested:
    try:
        if number not in sessions:
            sessions[number] = draws.session(number)
        return Suggested(sessions[number].suggest(question.name, question.distribution))
    except ParameterError as error:
        return Suggested(None, error=str(error))


def _note(heard: Heard, message: Message, after: float) -> None:
    match message:
        case Rehearsed():
            heard.report, heard.ended = message.report, True
        case Started():
            heard.started_after, heard.stage = after, "training"
        case CheckpointCommitted():
            heard.checkpoints[message.step] = (Path(message.path), message.bytes)
        case Warned():
            heard.warnings.append(message.message)
        case Failed():
            heard.failed, heard.ended = message, True
        case Finished() | StoppedHere():
            heard.ended = True
        case _:
            pass
