"""Names that a class of the user's gives times measured by a clock, read from its source."""

import importlib
import sys
from textwrap import dedent

import pytest

from sweeper.inspection.measured import measured_names

CLASSES = """
    import datetime
    import time
    from time import perf_counter as now

    class Clock:
        def time(self):
            return 3

    class Measures:
        def begin(self):
            self.began = now()
            self.count = 1

        def end(self, logs):
            import time as clock
            took = clock.time() - self.began
            self.rounded.append(round(took, 1))
            logs["seconds"] = took
            self.state["took"], self.other = took, 3
            self.day = datetime.date.today()

        def since(self):
            return time.monotonic()

    class Inherits(Measures):
        pass

    class CallsItsOwn:
        clock = Clock()

        def end(self):
            self.count = self.clock.time()
            self.text = "time.time()"

        @property
        def clocked(self):
            raise RuntimeError
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "users_clocks.py").write_text(dedent(CLASSES))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("users_clocks")
    del sys.modules["users_clocks"]


def test_what_a_clock_reaches_is_named_and_what_it_does_not_is_not(module):
    found = measured_names(module.Measures)
    assert found >= {"began", "rounded", "seconds", "took", "day", "since"}
    assert not found & {"count", "begin", "end"}
    assert measured_names(module.Inherits) == found


def test_a_method_that_is_called_time_is_no_clock(module):
    assert measured_names(module.CallsItsOwn) == frozenset()
    assert measured_names(dict) == frozenset()
