"""The figure of configurations: each repeat a point, their mean and its interval, by rank."""

from __future__ import annotations

import pytest
from test_configurations_table import _status

from sweeper.records.results import StudyResults
from sweeper.views.figures.configurations import configurations, drawn_configurations
from sweeper.views.pages.pictures import pictures_of


def test_each_repeat_is_a_point_beside_the_mean_and_half_the_interval() -> None:
    results = StudyResults(_status([0.9, 0.92, 0.91, 0.5, 0.4, 0.3], 3))
    repeats, means = configurations(results).data
    assert sorted(repeats.x) == [0.3, 0.4, 0.5, 0.9, 0.91, 0.92]
    assert list(means.x) == pytest.approx([0.91, 0.4])
    leading, _ = drawn_configurations(results)
    assert leading.interval is not None
    assert means.error_x.array[0] == pytest.approx((leading.interval[1] - leading.interval[0]) / 2)


def test_a_page_has_the_figure_first_and_only_where_there_are_repeats() -> None:
    repeated = pictures_of(StudyResults(_status([0.9, 0.92, 0.5, 0.4], 2)), importances=False)
    assert repeated[0].key == "configurations"
    single = pictures_of(StudyResults(_status([0.9, 0.92])), importances=False)
    assert "configurations" not in {picture.key for picture in single}
