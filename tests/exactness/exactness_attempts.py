"""One attempt of a study of the corpus in a process of its own, and what it said.

The process runs what every trial process runs, `serve_trial`, over a real channel. Where it takes
a checkpoint and where it dies is told by a `Replay`: at exact steps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from exactness_list import STUDIES

from sweeper.definition.definition import StudyDefinition
from sweeper.run.launch.trial_process import TrialProcess
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import (
    Answered,
    Assignment,
    CheckpointCommitted,
    EpochsEnded,
    Failed,
    Finished,
    Replay,
    Started,
    StoppedHere,
    Suggest,
    Warned,
    assignment_of,
)
from sweeper.run.trial.process import serve_trial
from sweeper.spec.checkpointing import Every, describe_every
from sweeper.support.paths import RunPaths
from sweeper.support.processes import die_with_parent

LIMIT = 120.0
"""Seconds after which an attempt is taken to hang."""

Start = Callable[[Assignment], TrialProcess]


@dataclass
class Attempt:
    """What one process said.

    Attributes:
        started: The step that it began at; None where it did not come to train.
        epochs: The metrics of each epoch that it told of.
        checkpoint: The newest that it told of.
        status: How the process ended, for a person.
        log: What it printed.
    """

    started: int | None = None
    epochs: dict[int, dict[str, float]] = field(default_factory=dict)
    checkpoint: CheckpointCommitted | None = None
    end: Finished | Failed | StoppedHere | None = None
    warned: list[str] = field(default_factory=list)
    status: str = ""
    killed: bool = False
    log: str = ""


@dataclass(frozen=True)
class Kill:
    """A checkpoint at ``(step, finished epochs)``, and death one step later."""

    step: int
    epoch: int

    @property
    def replay(self):
        return Replay(((self.step, self.epoch),), die_after=self.step + 1)


def kills_of(part, count):
    """In the middle of the first epoch, at the second one's end, in the middle of the third.

    One alone is the last: what changes with a batch has changed by then, and what changes with an
    epoch has twice.
    """
    steps = part.steps
    middle = steps // 2 + 1
    kills = [Kill(middle, 0), Kill(2 * steps, 2), Kill(2 * steps + middle - 1, 2)]
    return kills[-count:]


def settings_of(part):
    """The settings of the study, as a database would have them."""
    return StudyDefinition(
        name=part.name,
        model=_never,
        data=_never,
        objective=part.objective,
        epochs=part.epochs,
        trials=1,
        sampler="random",
        seed=5,
        threads=1,
        deterministic=part.deterministic,
    ).settings()


def assignment(part, directory, number, replay):
    """What attempt ``number`` of the study is told."""
    settings = settings_of(part)
    paths = RunPaths(directory, part.name)
    paths.attempt(0, number).mkdir(parents=True)
    return replace(
        assignment_of(
            replace(settings, checkpoint_every=describe_every(Every(steps=1 << 40))),
            *(paths, 0, number),
        ),
        order=replay,
    )


def _never(_trial):
    """Stand where a definition needs a factory; the trial's process has the real ones."""
    msg = "the harness called a factory"
    raise AssertionError(msg)


def run_attempt(ordered, start):
    """Start a process for the assignment, and listen to it until it ends."""
    attempt = Attempt()
    process = start(ordered)
    try:
        _listen(process, attempt)
        status = process.wait(10)
    finally:
        process.kill()
        process.channel.close()
    attempt.status = "hung" if status is None else status.describe()
    attempt.killed = status is not None and status.killed
    log = Path(ordered.log)
    attempt.log = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return attempt


def _listen(process, attempt):
    until = time.monotonic() + LIMIT
    while attempt.end is None and time.monotonic() < until:
        try:
            message = process.channel.receive(1.0)
        except (EOFError, OSError):
            return
        match message:
            case Suggest():
                error = "the studies of the corpus ask for no parameters"
                process.channel.send(Answered(None, error=error))
            case Started():
                attempt.started = message.start_step
            case EpochsEnded():
                attempt.epochs |= {e.epoch: dict(e.metrics) for e in message.epochs}
            case CheckpointCommitted():
                attempt.checkpoint = message
            case Warned():
                attempt.warned.append(message.message)
            case Finished() | Failed() | StoppedHere():
                attempt.end = message
            case _:
                pass


def main(descriptor, group, name, before):
    """In the study's process: everything that such a process does, and nothing else.

    Args:
        descriptor: The number of its end of the channel, on which its assignment comes.
        group: The stem of the file of the study ``name``, which is imported after TensorFlow is
            configured.
        before: ``module:function``, called before training, and before the study is imported.
    """
    from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything

    def load():
        if before:
            named(before)()
        seed_everything(IMPORT_SEED)
        sys.path.insert(0, str(STUDIES))
        __import__(group)
        return sys.modules["registry"].STUDIES[name]

    die_with_parent()
    channel = Channel.on(int(descriptor))
    ordered = channel.receive()
    assert isinstance(ordered, Assignment)
    log = os.open(ordered.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    serve_trial(channel, ordered, load)
    # What the study leaves running must not keep a process alive that has had its say.
    os._exit(0)


def named(name):
    """The function that ``module:function`` names."""
    import importlib

    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    sys.argv, own = sys.argv[:1], sys.argv[1:]
    main(*own)
