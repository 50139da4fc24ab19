"""The second line of defence on a study of the corpus: its first two intervals, audited.

One process trains to the end of the second epoch and takes checkpoints in the middle of the first epoch,
at its end, and at the second one's. Each interval is then replayed and compared by what a sweep's own audits use.

Beside that the trial is killed at the first two and told from the undisturbed one by its digest and
its metrics: this says, without an audit, whether the state that the study keeps acts within what is
audited. With a part of the capture switched off, what acts there must be caught.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace

from exactness_attempts import Start, assignment, run_attempt, settings_of

from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.reading import read_kept
from sweeper.records.results import TrialRecord
from sweeper.run.auditing import DroppedError, IntervalReplay
from sweeper.run.protocol.messages import Failed, Replay
from sweeper.support.paths import RunPaths


@dataclass(frozen=True)
class Audited:
    """What the audits of a study said, and what killing it at their checkpoints came to."""

    name: str
    acts: bool = False
    caught: tuple[str, ...] = ()
    refused: str = ""

    def __str__(self):
        if self.refused:
            return f"{self.name}: refused: {self.refused[:200]}"
        acts = "acts" if self.acts else "does not act"
        found = "; ".join(self.caught)[:200] or "alike"
        return f"{self.name}: {acts} within the audited intervals; audits: {found}"


def audit(part, directory, start):
    """Audit the first two intervals of the study's trial, and kill it where they begin."""
    positions = ((max(1, part.steps // 2), 0), (part.steps, 1), (2 * part.steps, 2))
    whole = _to(part, directory / "whole", 1, positions, start)
    if whole.checkpoint is None or whole.checkpoint.step < positions[-1][0]:
        refused = whole.end.error if isinstance(whole.end, Failed) else f"it ended: {whole.status}"
        return Audited(part.name, refused=refused)
    caught = tuple(_caught(part, directory / "whole", positions, start))
    return Audited(part.name, _acts(part, directory / "killed", positions, whole, start), caught)


def _to(part, directory, number, positions, start):
    """Train to the last of ``positions``, with a checkpoint at each, and die one step later."""
    replay = Replay(positions, die_after=positions[-1][0] + 1)
    # A replay is given its own directory in place of the one that the checkpoint's origin names.
    origin = Origin(part.name, "corpus", 0, settings_of(part).seed)
    return run_attempt(replace(assignment(part, directory, number, replay), origin=origin), start)


def _caught(part, directory, positions, start):
    paths = RunPaths(directory, part.name)
    kept = {each.step: each for each in read_kept([paths.checkpoints(0, 1)])}
    trial = TrialRecord(part.name, 0, "complete", {}, None, 0, None)
    for begin, end in itertools.pairwise(positions):
        replay = IntervalReplay(
            trial,
            kept[begin[0]],
            kept[end[0]],
            settings_of(part),
            paths.trial_files(0),
            Launching(start),
            threading.Event(),
        )
        try:
            outcome = replay.outcome()
        except DroppedError as error:
            yield f"{begin[0]} to {end[0]}: dropped: {error}"
            continue
        if not outcome.alike:
            differing = (
                [outcome.other_end]
                if outcome.other_end
                else map(str, outcome.comparison.differences)
            )
            yield f"{begin[0]} to {end[0]}: {'; '.join(map(str, list(differing)[:3]))}"


@dataclass
class Launching:
    """Starts a replay's processes as the corpus starts its own."""

    isolation = "fork"

    start: Start

    def launch(self, ordered):
        return self.start(ordered)

    def close(self):
        """Hold nothing."""


def _acts(part, directory, positions, whole, start):
    assert whole.checkpoint is not None
    epochs = {}
    digest = ""
    for number, (step, _) in enumerate(positions, start=1):
        attempt = _to(part, directory, number, positions[:number], start)
        if attempt.checkpoint is None or attempt.checkpoint.step != step:
            return True
        epochs |= attempt.epochs
        digest = attempt.checkpoint.digest
    return digest != whole.checkpoint.digest or whole.epochs != epochs
