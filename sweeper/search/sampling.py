"""Search of one trial: parameters and pruning, as functions of seed, number and window.

Every trial has a new sampler with its own seed, which sees a private study with only the trials
below ``number - window + 1`` (`sweeper.search.replayed_attributes`); so does the pruner, which is
new for every decision. All of these trials are finished before the trial may start, so draws and
decisions depend neither on the number of workers nor on the order of completion. A resumed trial
repeats its requests and gets equal values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sweeper.errors import ParameterError, SweeperError
from sweeper.search.replayed_attributes import Asked, ReplayedAttributes
from sweeper.search.spaces import Observation, check_alike, check_grid, to_text
from sweeper.search.spec import SamplerSpec
from sweeper.spec.space import CategoricalChoice, Distribution


def open_search(
    spec: SamplerSpec,
    number: int,
    observations: Sequence[Observation] = (),
    replayed: ReplayedAttributes | None = None,
) -> SearchSession:
    """Begin trial ``number``'s search.

    Args:
        spec: The study's sampler and pruner.
        number: The trial's number, from 0.
        observations: The finished trials below ``number - window + 1``, in order; ignored if
            results are not used.
        replayed: Cached attributes of the study's earlier trials.
    """
    if spec.grid is not None:
        check_grid(spec.grid, number + 1)
    seen = () if spec.window is None else _window(spec.window, number, observations)
    with _blamed_on_sampler(f"it was made for trial {number}"):
        finished = (replayed or ReplayedAttributes()).window(spec, seen)
        return SearchSession(Asked(spec, number, finished), seen)


@contextmanager
def _blamed_on_sampler(when: str) -> Iterator[None]:
    """Context manager that converts a sampler's errors to a `ParameterError`."""
    try:
        yield
    except SweeperError:
        raise
    except Exception as error:
        msg = (
            f"the sampler raised {type(error).__name__}: {error}, when {when}; check the "
            "arguments with which it was made"
        )
        raise ParameterError(msg) from error


class SearchSession:
    """Search of one trial: its parameters in the order of its requests, and pruning decisions."""

    def __init__(self, asked: Asked, seen: Sequence[Observation]) -> None:
        self._trial = asked
        self._seen = {n: (o.number, d) for o in reversed(seen) for n, d in o.distributions.items()}
        self._asked: dict[str, Distribution] = {}
        self._drawn: dict[str, CategoricalChoice] = {}
        self._judged: list[tuple[int, float]] = []
        self._verdict = False

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the trial's value of ``name``; a repeated request returns the same value."""
        before = self._asked.setdefault(name, distribution)
        if to_text(before) != to_text(distribution):
            msg = (
                f"parameter {name!r} was suggested as {before} and now as {distribution}; suggest "
                "it once, or always with the same range"
            )
            raise ParameterError(msg)
        if name in self._drawn:
            return self._drawn[name]
        if name in self._seen:
            number, earlier = self._seen[name]
            check_alike(name, distribution, earlier, number)
        with _blamed_on_sampler(f"it was asked for parameter {name!r} from {distribution}"):
            self._drawn[name] = self._trial.draw(name, distribution)
        return self._drawn[name]

    def judge(self, values: Sequence[tuple[int, float]]) -> bool:
        """Return whether the trial is pruned after the last of ``values``.

        Args:
            values: The objective after each epoch so far, with the epoch's number from 0, in
                order; all of them at every call.
        """
        if list(values[: len(self._judged)]) != self._judged:
            msg = f"a trial's earlier values changed from {self._judged} to {list(values)}"
            raise ValueError(msg)
        for epoch, value in values[len(self._judged) :]:
            self._verdict = self._trial.judge(epoch, value)
            self._judged.append((epoch, value))
        return self._verdict


def _window(
    window: int, number: int, observations: Sequence[Observation]
) -> tuple[Observation, ...]:
    end = max(0, number - window + 1)
    seen = sorted((o for o in observations if o.number < end), key=lambda o: o.number)
    if [o.number for o in seen] != list(range(end)):
        msg = (
            f"trial {number} with a window of {window} must see exactly the {end} trials "
            f"below {end}, and was given {[o.number for o in seen]}; wait until all are finished"
        )
        raise ValueError(msg)
    return tuple(seen)
