"""Which of a trial's models is meant: as training left it, of its best kept epoch, or of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.checkpoints.best import best_checkpoint
from sweeper.checkpoints.end import read_end
from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.checkpoints.origin import Origin
from sweeper.checkpoints.policy import KeptCheckpoint
from sweeper.checkpoints.reading import load_checkpoint, read_kept
from sweeper.declared.searching import Direction
from sweeper.errors import CheckpointError, ForeignCheckpointError, UsageError
from sweeper.execution.worker.checkpoints import locate
from sweeper.paths import Location, RunPaths, end_model_beside, parse_location
from sweeper.records.model_source import At
from sweeper.results import TrialRecord

_WITHOUT_END = {
    "pruned": "was pruned, so its training did not come to its end",
    "failed": "failed, so its training did not come to its end",
}

_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True)
class ChosenModel:
    """A model that a trial keeps.

    Attributes:
        loaded: Its variables, read and verified.
        training: The trial's kept checkpoints up to it, oldest first; the last one holds the
            optimizer as it was at the end of ``loaded``'s step.
    """

    loaded: LoadedCheckpoint
    training: tuple[KeptCheckpoint, ...]


@dataclass(frozen=True)
class TrialFiles:
    """What a trial has on disk, or in an object store.

    Attributes:
        kept: Its checkpoints that are there and whole by their manifests, oldest first.
        ends: Where its model as training left it may be.
        origin: Whose all of it must be.
    """

    trial: TrialRecord
    kept: tuple[KeptCheckpoint, ...]
    ends: tuple[Location, ...]
    origin: Origin

    @classmethod
    def of(cls, trial: TrialRecord, paths: RunPaths, origin: Origin) -> TrialFiles:
        """Look for them where the database says, or below the runs directory of today.

        Raises:
            ForeignCheckpointError: What is there is another study's.
            CheckpointError: The disk or the object store does not tell.
        """
        located = [parse_location(path) for path in locate(trial, paths).known]
        own = [path for path in located if _attempt(path) > trial.anew_after]
        found = {c.step: c for c in read_kept((), own, origin=origin) if c.good}
        ends = [paths.end_model(trial.number), *(end_model_beside(path) for path in reversed(own))]
        kept = tuple(found[step] for step in sorted(found))
        return cls(trial, kept, tuple(dict.fromkeys(ends)), origin)

    def choose(self, at: At, objective: str, direction: Direction) -> ChosenModel:
        """The model that is meant by ``at``.

        Args:
            at: ``"end"``, ``"best"`` or a step.
            objective: The study's; the first of several.
            direction: Which way is better.

        Raises:
            UsageError: ``at`` is none of these.
            CheckpointError: The trial keeps no such model; what it keeps is listed.
        """
        if at == "end":
            return self._end()
        if at == "best":
            best = best_checkpoint(self.kept, objective, direction)
            if best is None:
                lacked = f"has no checkpoint with the objective {objective!r}"
                raise self._missing(lacked)
            return self._of(best)
        if isinstance(at, bool) or not isinstance(at, int):
            msg = f"at={at!r}; it is 'end', 'best', or the step of a kept checkpoint"
            raise UsageError(msg)
        for checkpoint in self.kept:
            if checkpoint.step == at:
                return self._of(checkpoint)
        lacked = f"has no checkpoint of step {at}"
        raise self._missing(lacked)

    def _end(self) -> ChosenModel:
        trial = self.trial
        if trial.state != "complete":
            begun = _WITHOUT_END.get(trial.state, f"is {trial.state}, so its training goes on")
            msg = f"trial {trial.number} of study {trial.study!r} {begun}; {self._advice()}"
            raise CheckpointError(msg)
        loaded = read_end(self.ends, [checkpoint.path for checkpoint in self.kept])
        if loaded is None or not self.kept:
            lacked = (
                "keeps no model as training left it (a version of sweeper that kept none ran it, "
                f"or {self.ends[0]} was removed)"
            )
            raise self._missing(lacked)
        foreign = [] if loaded.origin is None else self.origin.differences(loaded.origin)
        if foreign:
            msg = (
                f"the model as training left it in {loaded.path} cannot be used: "
                f"{'; '.join(foreign)}. Name the runs directory of study {trial.study!r} "
                "(--runs-dir, runs_dir=…)"
            )
            raise ForeignCheckpointError(msg)
        return ChosenModel(loaded, self.kept)

    def _of(self, checkpoint: KeptCheckpoint) -> ChosenModel:
        before = tuple(each for each in self.kept if each.step <= checkpoint.step)
        return ChosenModel(load_checkpoint(checkpoint.path), before)

    def _missing(self, lacked: str) -> CheckpointError:
        trial = self.trial
        msg = f"trial {trial.number} of study {trial.study!r} {lacked}; {self._advice()}"
        return CheckpointError(msg)

    def _advice(self) -> str:
        if not self.kept:
            return "it keeps no checkpoint that could be loaded instead"
        shown = ", ".join(f"{c.step} ({_epochs(c)})" for c in self.kept)
        newest = self.kept[-1].step
        return f"it keeps the checkpoints of the steps {shown}: at={newest} is the newest"


def origin_of(study: str, identity: str, trial: TrialRecord, seed: int) -> Origin:
    """Whose the trial's checkpoints must be, under whatever definition."""
    return Origin(study, identity, trial.number, seed)


def newest_of(training: Sequence[KeptCheckpoint], count: int | None) -> tuple[KeptCheckpoint, ...]:
    """The newest ``count`` of a trial's checkpoints, oldest first; without a count the last."""
    return tuple(training[-(count or 1) :])


def _attempt(path: Location) -> int:
    named = _ATTEMPT.fullmatch(path.parent.parent.name)
    return 1 << 30 if named is None else int(named[1])


def _epochs(checkpoint: KeptCheckpoint) -> str:
    return f"{checkpoint.epoch} epoch{'' if checkpoint.epoch == 1 else 's'}"
