"""Sweeps without training: workers that finish in any order, trials that are a formula."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from sweeper.declarations.space import (
    Categorical,
    CategoricalChoice,
    Distribution,
    FloatRange,
    IntRange,
)
from sweeper.search.sampling import ReplayedAttributes, SearchSession, open_search
from sweeper.search.spaces import Observation
from sweeper.search.spec import SamplerSpec

Point = dict[str, CategoricalChoice]
Space = Callable[[SearchSession], tuple[Point, dict[str, Distribution]]]

FLAT = {
    "rate": FloatRange(1e-4, 1e-1, log=True),
    "units": IntRange(8, 128, step=8),
    "momentum": FloatRange(0.0, 0.9),
}
BRANCHES = {
    "optimizer": Categorical(("sgd", "adam")),
    "rate": FloatRange(1e-4, 1e-1, log=True),
    "momentum": FloatRange(0.0, 0.9),
    "layers": IntRange(1, 3),
    "units_0": IntRange(8, 64),
    "units_1": IntRange(8, 64),
    "units_2": IntRange(8, 64),
}
SMALL = {
    "kind": Categorical(("a", "b", None)),
    "depth": IntRange(1, 4),
}


def flat(session):
    return {n: session.suggest(n, d) for n, d in FLAT.items()}, FLAT


def small(session):
    return {n: session.suggest(n, d) for n, d in SMALL.items()}, SMALL


def branching(session):
    """Parameters that only some trials ask for, as a model with optional parts has them."""
    point = {n: session.suggest(n, BRANCHES[n]) for n in ("optimizer", "rate")}
    if point["optimizer"] == "sgd":
        point["momentum"] = session.suggest("momentum", BRANCHES["momentum"])
    point["layers"] = session.suggest("layers", BRANCHES["layers"])
    for layer in range(int(point["layers"] or 0)):
        name = f"units_{layer}"
        point[name] = session.suggest(name, BRANCHES[name])
    return point, {n: BRANCHES[n] for n in point}


def loss(point, epoch):
    """What a trial reports: falls with the epochs, to a level that its parameters decide."""
    level = sum(
        abs(hash_free(f"{name}={value!r}")) if isinstance(value, str | None) else abs(float(value))
        for name, value in point.items()
    )
    return math.log1p(level) + 2.0 / (1 + epoch) + 0.3 * math.sin(7.0 * level + epoch)


def hash_free(text):
    return sum(map(ord, text)) % 17 / 17.0


@dataclass(frozen=True)
class Sweep:
    """How to run one."""

    spec: SamplerSpec
    trials: int
    space: Space = flat
    epochs: int = 1
    objectives: int = 1
    blind: bool = False
    newcomers: bool = False

    def run(self, workers, seed=0):
        """Whichever of the busy workers is drawn finishes next."""
        shuffle = random.Random(1000 * workers + seed)
        replayed = ReplayedAttributes()
        observations = dict[int, Observation]()
        running = {}
        started = 0
        while len(observations) < self.trials:
            oldest = min(running, default=started)
            window = self.spec.window
            free = len(running) < workers and started < self.trials
            if free and (window is None or oldest > started - window):
                running[started] = tuple(sorted(observations.values(), key=lambda o: o.number))
                started += 1
                continue
            number = shuffle.choice(sorted(running))
            observations[number] = self._trial(number, running.pop(number), replayed)
        return [observations[number] for number in range(self.trials)]

    def _trial(self, number, observations, replayed):
        def session():
            spec = self.spec
            window = observations
            if self.blind:
                window = tuple(replace(o, number=n) for n, o in enumerate(observations))
                spec = replace(spec, window=number - len(window) + 1)
            fresh = self.newcomers or self.blind
            return open_search(spec, number, window, ReplayedAttributes() if fresh else replayed)

        asked = session()
        point, distributions = self.space(asked)
        values = []
        state = "complete"
        for epoch in range(self.epochs):
            values.append((epoch, loss(point, epoch)))
            if epoch == self.epochs - 1:
                break
            if self.newcomers:
                asked = session()
                self.space(asked)
            if asked.judge(values):
                state = "pruned"
                break
        final = [values[-1][1] * (-1) ** i + i for i in range(self.objectives)]
        return Observation(
            number,
            state,
            point,
            {n: distributions[n] for n in point},
            final[0],
            dict(values),
            tuple(final) if self.objectives > 1 else None,
        )
