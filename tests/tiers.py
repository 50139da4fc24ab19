"""The two tiers of tests, the order in which files begin, and what a run says of both.

By default a run leaves out what is marked with one of `NIGHTLY`, each of which has a smaller version that
runs: it is what a change needs. ``--all`` leaves out nothing, and ends with a table of suites.

``durations.json`` has the processor seconds of each file in the last measured run. The longest begin
first, and a file that has become `SLOWER` seconds slower is named. ``--measure`` writes it anew.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

NIGHTLY = ("whole", "chaos", "soak", "pages")
DURATIONS = Path(__file__).with_name("durations.json")
SLOWER = 10.0
_ROOT = Path(__file__).parent


def read_durations():
    """Return the processor seconds of each file, by its path below this directory."""
    return json.loads(DURATIONS.read_text())


def suite_of(item):
    """Return the marker of the nightly tier, or the default tier's directory."""
    for name in NIGHTLY:
        if item.get_closest_marker(name):
            return name
    return item.path.relative_to(_ROOT).parts[0].removesuffix(".py")


def longest_first(items):
    """Return the tests of each file together, the files that take long first; new files before all."""
    seconds = read_durations()
    return sorted(items, key=lambda item: -seconds.get(_name(item.path), 1e9))


def _name(path):
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else str(path)


class SuiteTable:
    """Plugin that ends a run with a line for each suite."""

    def __init__(self):
        self._of = {}
        self._seconds = Counter()
        self._outcomes = defaultdict(Counter)

    def pytest_collection_finish(self, session):
        self._of = {item.nodeid: suite_of(item) for item in session.items}

    def pytest_runtest_logreport(self, report):
        suite = self._of.get(report.nodeid, "?")
        self._seconds[suite] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[suite][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("suites")
        for name in sorted(self._seconds, key=lambda name: (name in NIGHTLY, name)):
            ended = ", ".join(f"{n} {end}" for end, n in sorted(self._outcomes[name].items()))
            terminalreporter.line(f"{name:<20}{self._seconds[name] / 60:>7.1f} minutes  {ended}")


def say_durations(reporter, measured, *, write):
    """Name the files that have become slower; with ``write``, store what was measured."""
    durations = {_name(path): round(seconds, 1) for path, seconds in measured.items()}
    if write:
        DURATIONS.write_text(json.dumps(dict(sorted(durations.items())), indent=0) + "\n")
    old_durations = read_durations()
    for name, seconds in sorted(durations.items()):
        old_seconds = old_durations.get(name)
        if seconds - (old_seconds or 0.0) >= SLOWER:
            reporter.line(
                f"{name} took {seconds:.0f} processor seconds, {old_seconds or 0:.0f} when it was measured"
            )
