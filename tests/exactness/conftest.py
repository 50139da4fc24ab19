"""A server for the corpus, a count for each of its files, and one test for each study of its groups."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exactness_list import BY_DEFAULT, StudyPart, studies_of
from exactness_server import JudgingServer
from exactness_verdicts import ALL_KILLS, Verdict

COUNTED = ("identical", "refused", "silent")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``part`` each study of the groups that the test's module names in ``GROUPS``.

    And ``kills`` how often each is killed: three times in the whole suite. By default those of
    `BY_DEFAULT` are run, and killed once.
    """
    if "part" in metafunc.fixturenames:
        parts = [part for group in metafunc.module.GROUPS for part in studies_of(group)]
        whole = [
            pytest.param(part, ALL_KILLS, id=f"{part.name}-three kills", marks=pytest.mark.whole)
            for part in parts
        ]
        some = [part for part in parts if part.name in BY_DEFAULT]
        assert some, "no study of this file is run by default"
        few = [pytest.param(part, 1, id=f"{part.name}-one kill") for part in some]
        metafunc.parametrize(("part", "kills"), few + whole)


@pytest.fixture(scope="session")
def server(forked_servers: tuple[str, ...]) -> Iterator[JudgingServer]:
    """Serves every group."""
    opened = JudgingServer((*forked_servers, "run"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def judge(
    request: pytest.FixtureRequest,
    server: JudgingServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[StudyPart, int], Verdict]]:
    """Judges a study; at the end of the module, what all came to is printed."""
    of_module = request.module.GROUPS
    counts: Counter[str] = Counter()

    def judged(part: StudyPart, kills: int) -> Verdict:
        verdict = server.judge(part, tmp_path_factory.mktemp(part.group), kills)
        counts[verdict.outcome] += 1
        return verdict

    yield judged
    base = tmp_path_factory.getbasetemp()  # below the run's, where each file has a process
    apart = request.config.option.processes and not request.config.option.usepdb
    total = _added(base.parent if apart else base, of_module, counts)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(
            f"\nexactness, {' and '.join(of_module)}: {_counted(counts)}; so far: {_counted(total)}",
            file=sys.stderr,
        )


def _added(directory: Path, of_module: tuple[str, ...], counts: Counter[str]) -> Counter[str]:
    """The counts of every file of this run so far, which share a directory."""
    (directory / f"exactness-{of_module[0]}.json").write_text(json.dumps(counts), encoding="utf-8")
    total: Counter[str] = Counter()
    for file in directory.glob("exactness-*.json"):
        total.update(json.loads(file.read_text(encoding="utf-8")))
    return total


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in COUNTED)
