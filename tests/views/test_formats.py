"""How numbers are written for people."""

import pytest

from sweeper.views import formats


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (float("inf"), "-"), (float("nan"), "-"), (-0.5, "0ms"),
        (0.0423, "42ms"), (1.23, "1.2s"),
        (9.99, "10.0s"), (59.4, "59s"), (59.6, "1m00s"), (3599.0, "59m59s"), (3600.0, "1h00m"),
        (90000.0, "1d01h"),
    ],
)  # fmt: skip
def test_times(seconds, text):
    assert formats.time_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes(count, text):
    assert formats.size_text(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (99.94, "99.9"), (1234.5, "1234"), (667000.0, "667000")]
)
def test_rates(value, text):
    assert formats.rate_text(value) == text


def test_parameters_stay_on_one_line_and_can_be_distinguished():
    params = {"a": 0.1, "b": True, "c": None, "d": "x", "e": "", "f": "x y", "g": "x\ny", "h": 3}
    expected = r'a=0.1 b=True c=None d=x e="" f="x y" g="x\ny" h=3'
    assert formats.params_text(params) == expected


def test_the_last_line_of_a_traceback_is_the_error():
    assert formats.last_line("Traceback\n  File x\nValueError: y\n\n") == "ValueError: y"
    assert formats.last_line("") == ""
