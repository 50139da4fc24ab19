"""Rungs and lengths on our pages and in the report: who went on, and from where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.records.lengths import Extension
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.spec.budgets import Halving, describe_budget
from sweeper.spec.searching import Objective
from sweeper.views.dashboard.server import OpenedRepository
from sweeper.views.dashboard.site import PagesApplication
from sweeper.views.pages.content import Advice

VALUES = {0: 0.4, 1: 0.1, 2: 0.3, 3: 0.2}
Shown = Callable[[str], str]


@dataclass(frozen=True)
class Written:
    url: str
    shown: Shown


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def text_of(page: str) -> str:
    parser = _Texts()
    parser.feed(page)
    return " ".join(" ".join(parser.found).split())


def claim(repository: Repository, study: str) -> Claim:
    claimed = repository.claim(study, WorkerIdentity.here(), lambda number: number)
    assert isinstance(claimed, Claim), claimed
    return claimed


def under_a_budget(repository: Repository) -> None:
    """Four trials, of which two go on from the first epoch and one from the second, to the fourth."""
    described = describe_budget(
        Halving(factor=2), epochs=4, pruner=None, objectives=(Objective("loss", "minimize"),)
    )
    definition = {"epochs": 4, "concurrency": 4, "budget": described}
    repository.create_or_open(StudyRow("halved", definition, "loss", "minimize", 4, None, seed=1))
    while repository.status("halved").complete < 1:
        taken = claim(repository, "halved")
        end = taken.pause_after or 4
        value = VALUES[taken.number]
        repository.record_process(taken.token, 5, "fork", 0)
        repository.record_epochs(
            taken.token, [EpochRecord(end - 1, {"loss": value})], {end - 1: value}
        )
        ending = Ending("complete", end, value, f"{taken.number:032}")
        if taken.pause_after is not None:
            ending = Ending("paused", end, value, f"{taken.number:032}", rung=end)
        repository.finish(taken.token, ending)


def extended(repository: Repository) -> None:
    """One trial of two epochs, and of three after that."""
    definition = {"epochs": 2, "concurrency": 1}
    repository.create_or_open(StudyRow("longer", definition, "loss", "minimize", 1, None, seed=1))
    for epochs, value in ((2, 0.5), (3, 0.25)):
        taken = claim(repository, "longer")
        path = f"/runs/longer/trial-00000/attempt-0{epochs}/checkpoints/step-0{epochs}0"
        repository.record_checkpoint(
            taken.token, CheckpointRecord(epochs * 10, epochs, "ab" * 16, 9, path)
        )
        new = range(2) if epochs == 2 else range(2, 3)
        repository.record_epochs(
            taken.token, [EpochRecord(n, {"loss": value}) for n in new], dict.fromkeys(new, value)
        )
        repository.finish(taken.token, Ending("complete", epochs * 10, value, str(epochs) * 32))
        if epochs == 2:
            repository.lengths.extend("longer", Extension(3))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    runs = tmp_path_factory.mktemp("budgets")
    url = f"sqlite:///{runs}/sweeper.db"
    with Database.open(url, create=True) as database:
        repository = Repository(database)
        under_a_budget(repository)
        extended(repository)
    opened = OpenedRepository(url)
    application = PagesApplication(opened, Advice(lambda _status: [], lambda _trial: []))

    def shown(path: str) -> str:
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ |= {"REQUEST_METHOD": "GET", "PATH_INFO": f"/sweeper/studies/{path}"}
        answered: list[str] = []
        body = b"".join(application(environ, lambda status, _headers: answered.append(status)))  # type: ignore[arg-type, func-returns-value]
        assert answered == ["200 OK"], (answered, body)
        return text_of(body.decode())

    yield Written(url, shown)
    opened.close()


def test_a_studys_page_has_each_decision(written: Written) -> None:
    text = written.shown("halved")
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert f"0 0 1 4 1 (0.1), 3 (0.2) {today}" in text, "all four compared after epoch 1"
    assert f"0 0 2 2 1 (0.1) {today}" in text, "two after epoch 2"
    assert "rungs of the budget" not in written.shown("longer")


def test_a_trials_page_says_what_became_of_it_at_each_rung(written: Written) -> None:
    compared = "4 trials of bracket 0 from trial 0 on, of which 2 went on"
    best, left = written.shown("halved/trials/1"), written.shown("halved/trials/2")
    assert f"1 0.1 promoted {compared}; also promoted: 3 (0.2)" in best
    assert "2 0.1 promoted 2 trials of bracket 0 from trial 0 on, of which 1 went on" in best
    assert f"1 0.3 ended here {compared}" in left
    assert "Rungs" not in written.shown("longer/trials/0")


def test_a_trials_page_has_what_it_gave_at_each_length(written: Written) -> None:
    text = written.shown("longer/trials/0")
    assert f"2 2 complete 0.5 {'2' * 32} 3 3 complete 0.25 {'3' * 32}" in text
    assert "Lengths" not in written.shown("halved/trials/1")


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ("halved", ("0 0 1 4 1 (0.1), 3 (0.2)", "paused at rungs of the budget 6 times")),
        ("longer", (f"0 2 2 complete 0.5 {'2' * 32}", f"0 3 3 complete 0.25 {'3' * 32}")),
    ],
)
def test_the_report_has_who_went_on_and_from_where(
    written: Written, tmp_path: Path, study: str, said: tuple[str, ...]
) -> None:
    path = tmp_path / "report.html"
    assert main(["report", study, "--storage", written.url, "--output", str(path)]) == 0
    text = text_of(path.read_text())
    assert "Resumed trials" in text
    for each in said:
        assert each in text, each
    assert "No trial was interrupted" in text, "a pause at a rung is no interruption"


def test_a_report_without_a_budget_has_no_such_section(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/sweeper.db"
    with Database.open(url, create=True) as database:
        repository = Repository(database)
        repository.create_or_open(
            StudyRow("plain", {"epochs": 1}, "loss", "minimize", 1, None, seed=1)
        )
        taken = claim(repository, "plain")
        repository.finish(taken.token, Ending("complete", 1, 0.5, "d" * 32))
    path = tmp_path / "report.html"
    assert main(["report", "plain", "--storage", url, "--output", str(path)]) == 0
    text = text_of(path.read_text())
    assert "Resumed trials" not in text
    assert "each ran in one attempt" in text
