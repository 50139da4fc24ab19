"""A run says now and then how the whole study stands, since other workers may serve it too."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.errors import DatabaseUnavailableError
from sweeper.records.events import StudyCounted
from sweeper.records.results import BestTrial, StudyStatus
from sweeper.run import serving

BEST = BestTrial(7, 0.9, {})


class Repository:
    """Answers with one status after another, the last one for ever; an error is raised."""

    def __init__(self, *answers: StudyStatus | Exception) -> None:
        self.answers = list(answers)
        self.asked = threading.Semaphore(0)

    def with_patience(self, seconds: float) -> Repository:
        assert seconds <= 1.0, "a count waits for nobody"
        return self

    def status(self, study: str) -> StudyStatus:
        assert study == "digits"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.release()
        if isinstance(answer, Exception):
            raise answer
        return answer


def counted(repository: Repository, times: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was told by the time that the repository was asked so many times, and once more."""
    told: list[Any] = []
    monkeypatch.setattr(serving, "_COUNT_EVERY", 0.001)
    monkeypatch.setattr(serving, "_COUNT_SHARE", 0)
    study = SimpleNamespace(repository=repository, settings=SimpleNamespace(name="digits"))
    with serving._counting(SimpleNamespace(study=study, tell=told.append)):  # type: ignore[arg-type]
        for _ in range(times + 1):
            assert repository.asked.acquire(timeout=30)
    return told


def test_a_count_is_told_once_until_it_changes_and_an_absent_database_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = StudyStatus("digits", 9, complete=2, pruned=1, failed=1, interrupted=1, running=3)
    more = StudyStatus("digits", 9, complete=3, pruned=1, failed=1, running=3, best=BEST)
    away = DatabaseUnavailableError("away")
    told = counted(Repository(some, some, away, more), 4, monkeypatch)
    assert told == [StudyCounted(some), StudyCounted(more)]
