"""A process that the corpus's are forked from, and one test for each study of a file's groups."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import exactness_verdicts as verdicts
import pytest
from exactness_list import BY_DEFAULT, StudyPart, studies_of
from exactness_starting import service, starts
from exactness_verdicts import ALL_KILLS


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
        few = [
            pytest.param(part, 1, id=f"{part.name}-one kill")
            for part in parts
            if part.name in BY_DEFAULT
        ]
        metafunc.parametrize(("part", "kills"), few + whole)


@pytest.fixture(scope="module", autouse=True)
def corpus_service(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have processes of the module's studies forked where their imports are done."""
    with service(tmp_path_factory.mktemp("service")):
        yield


@pytest.fixture(scope="module")
def judge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[StudyPart, int], None]]:
    """Judge a study, and fail on what it does not say; at the end, what all came to is printed."""
    counts: Counter[str] = Counter()

    def judged(part: StudyPart, kills: int) -> None:
        before = os.environ.get("SWEEPER_EXACTNESS_BEFORE")
        with starts(part, before) as start:
            verdict = verdicts.judge(part, tmp_path_factory.mktemp(part.group), start, kills)
        counts[verdict.outcome] += 1
        expected = " or ".join(part.expects.outcomes)
        assert verdict.fits(part), f"{verdict}\nexpected: {expected} ({part.kind})\n{verdict.log}"

    yield judged
    told = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("identical", "refused", "silent")
    )
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{request.module.__name__}: {told}", file=sys.stderr)
