"""A sampler that raises, a user's own among them, is an error of the study's code, not a bug here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from scripted_trials import ScriptedTrial, raise_error, scripted_sweep

from sweeper.errors import ParameterError
from sweeper.run.protocol.messages import Suggest
from sweeper.run.worker.slot import serve_slot
from sweeper.search.sampling import open_search
from sweeper.search.spec import SamplerSpec
from sweeper.spec.space import FloatRange


class Raising(optuna.samplers.RandomSampler):
    def __init__(self, where: str) -> None:
        super().__init__(seed=0)
        self.where = where

    def infer_relative_search_space(self, *given: Any) -> Any:
        if self.where == "search space":
            raise LookupError("no table")
        return super().infer_relative_search_space(*given)

    def sample_independent(self, *given: Any) -> Any:
        if self.where == "sample":
            raise LookupError("no table")
        return super().sample_independent(*given)


@pytest.mark.parametrize("where", ["making", "search space", "sample"])
def test_what_a_users_sampler_raises_is_named_and_blamed_on_it(where: str) -> None:
    def factory(seed: int) -> optuna.samplers.BaseSampler:
        del seed
        if where == "making":
            raise LookupError("no table")
        return Raising(where)

    spec = SamplerSpec(name="own", seed=1, window=1, factory=factory)
    with pytest.raises(ParameterError, match="the sampler raised LookupError: no table"):
        open_search(spec, 0).suggest("x", FloatRange(0.0, 1.0))


def test_a_run_whose_sampler_raises_goes_on_and_each_trial_says_so(tmp_path: Path) -> None:
    """Beside its pruner, whose errors were told like this before."""
    answers: list[Any] = []

    def ask(trial: ScriptedTrial) -> int:
        trial.say(Suggest("x", FloatRange(0.0, 1.0)))
        answers.append(trial._own.receive(30))
        return raise_error(trial)

    with scripted_sweep(tmp_path, {None: ask}, trials=2) as sweep:
        factory = lambda _seed: Raising("sample")  # noqa: E731
        spec = SamplerSpec(name="own", seed=1, window=1, factory=factory)
        sweep.context.study = replace(sweep.context.study, search=spec)
        serve_slot(sweep.context)
        assert sweep.context.error is None
        assert [t.state for t in sweep.trials] == ["failed", "failed"]
    assert ["the sampler raised LookupError: no table" in t.error for t in answers] == [True, True]


def test_a_sampler_that_does_not_raise_draws() -> None:
    spec = SamplerSpec(name="own", seed=1, window=1, factory=lambda _seed: Raising("nowhere"))
    assert 0 <= open_search(spec, 0).suggest("x", FloatRange(0.0, 1.0)) <= 1  # type: ignore[operator]
