"""How far a trial looks back, and that a study keeps the window that it was created with."""

from __future__ import annotations

import pytest

from sweeper.db.repository import StudyRow
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.run.stored_study import _window
from sweeper.search.spec import look_back, search_spec


def settings_of(sampler: str = "tpe", concurrency: int = 4) -> StudySettings:
    return StudyDefinition(
        name="s",
        model=print,  # type: ignore[arg-type]
        data=print,  # type: ignore[arg-type]
        epochs=1,
        trials=4,
        sampler=sampler,
        concurrency=concurrency,
        threads=1,
    ).settings()


def stored(settings: StudySettings, window: int | None) -> StudyRow:
    return StudyRow("s", settings.to_json(), "val_loss", "minimize", 4, window, 0)


def test_one_trial_at_a_time_sees_every_trial_before_it() -> None:
    assert look_back(1) == 1


@pytest.mark.parametrize("concurrency", [2, 4, 8, 100])
def test_a_trial_sees_nothing_that_may_still_be_running(concurrency: int) -> None:
    """The design's bound: only trials up to n - concurrency."""
    assert look_back(concurrency) >= concurrency


def test_a_study_keeps_its_window_as_long_as_its_concurrency() -> None:
    settings = settings_of()
    assert _window(settings, None) == 7
    assert _window(settings, stored(settings, 4)) == 4, "created when trials looked back less far"
    assert _window(settings_of(concurrency=2), stored(settings, 4)) == 3
    blind = settings_of("random")
    assert _window(blind, stored(blind, None)) is None
    assert _window(settings, stored(blind, None)) == 7, "the sampler is another one"
    assert search_spec(settings, window=4).window == 4
