"""Cost of a study's page with many trials: its report, drawing and memory in Chromium, and a poll.

    python benchmarks/page_cost.py --trials 1000 --epochs 100

The study is written into a database as a worker writes it; nothing is trained. Bounds: drawn within 2 s, 200 MB of
browser memory, 50 ms of the server for a poll.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.declarations.settings import load_settings
from sweeper.declarations.space import Categorical, FloatRange, IntRange
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.views.page.payload import Advice, LivePayloads
from sweeper.views.page.report import make_report

STUDY = "large"
RUNNING = 8


def write_trial(repository: Repository, number: int, epochs: int, draws: random.Random) -> Claim:
    """Write a trial with all of its epochs; it is still running."""
    claim = repository.claim(STUDY, WorkerIdentity.here(), lambda n: n)
    assert isinstance(claim, Claim)
    repository.record_process(claim.token, 1, "fork", 0)
    rate = 10 ** draws.uniform(-4, -1)
    for name, distribution, value in (
        ("learning_rate", FloatRange(1e-4, 0.1, log=True), rate),
        ("optimizer", Categorical(("sgd", "adam")), draws.choice(["sgd", "adam"])),
        ("units", IntRange(8, 64), draws.randrange(8, 65)),
        ("dropout", FloatRange(0.0, 0.5), draws.uniform(0, 0.5)),
    ):
        repository.record_parameter(claim.token, name, distribution, value)
    level = 1 - abs(math.log10(rate) + 2) / 4
    values = [level * (1 - math.exp(-(e + 1) / 20)) + draws.gauss(0, 0.005) for e in range(epochs)]
    records = [
        EpochRecord(e, {"loss": 1 - v, "accuracy": v, "val_loss": 1.1 - v, "val_accuracy": v})
        for e, v in enumerate(values)
    ]
    repository.record_epochs(claim.token, records, dict(enumerate(values)))
    kept = CheckpointRecord(epochs * 10, epochs, f"{number:032x}", 51200, f"runs/{number}/step")
    repository.record_checkpoint(claim.token, kept)
    return claim


def write_study(repository: Repository, trials: int, epochs: int) -> list[Claim]:
    """Write the study; return its last trials, which still run."""
    draws = random.Random(1)
    row = StudyRow(STUDY, {"epochs": epochs}, "val_accuracy", "maximize", trials, None, 7)
    repository.create_or_open(row)
    running = []
    for number in range(trials):
        claim = write_trial(repository, number, epochs, draws)
        if number >= trials - RUNNING:
            running.append(claim)
            continue
        value = repository.trial(STUDY, number).epochs[-1].metrics["val_accuracy"]
        repository.finish(claim.token, Ending("complete", epochs * 10, value, f"{number:032x}"))
    return running


def draw(page: Path, trials: int) -> tuple[float, float, float]:
    """Return the seconds until the window is drawn and until all rows are, and the browser's memory in MB."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--headless", "--disable-gpu"],
        )
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        tab.goto(page.as_uri(), wait_until="commit")
        tab.wait_for_selector("html[data-drawn=yes]", state="attached")
        seconds = time.perf_counter() - began
        tab.wait_for_selector(f"#trials-table tbody tr:nth-child({trials})", state="attached")
        whole = time.perf_counter() - began
        renderers = [
            each.memory_full_info().uss / 1e6
            for each in psutil.Process().children(recursive=True)
            if "--type=renderer" in each.cmdline()
        ]
        browser.close()
    return seconds, whole, max(renderers)


def poll(repository: Repository, running: list[Claim], epochs: int, *, changes: bool) -> float:
    """Return the median milliseconds of processor time for a poll, while all running trials end epochs or not."""
    payloads = LivePayloads(Advice())
    version, _ = payloads.answer(repository, STUDY, "", {})
    time.sleep(5)  # the importances of parameters are computed meanwhile
    spent = []
    for turn in range(20):
        if changes:
            for claim in running:
                record = EpochRecord(epochs + turn, {"loss": 0.1, "val_accuracy": 0.9})
                repository.record_epochs(claim.token, [record], {})
        began = time.thread_time()
        version, _ = payloads.answer(repository, STUDY, version, {})
        spent.append((time.thread_time() - began) * 1000)
    return statistics.median(spent)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        storage = f"sqlite:///{directory}/sweeper.db"
        with Database.open(storage, create=True) as database:
            repository = Repository(database)
            running = write_study(repository, given.trials, given.epochs)
            page = Path(directory, "report.html")
            settings: Any = load_settings(storage=storage)
            began = time.perf_counter()
            make_report(STUDY, settings, output=page)
            wrote = time.perf_counter() - began
            print(f"{datetime.now(UTC):%Y-%m-%d}: {given.trials} trials of {given.epochs} epochs")
            print(f"report written in {wrote:.2f} s, {page.stat().st_size / 1e6:.1f} MB")
            seconds, whole, memory = zip(*(draw(page, given.trials) for _ in range(3)), strict=True)
            print(f"drawn in {min(seconds):.2f} s, with all rows in {min(whole):.2f} s")
            print(f"{max(memory):.0f} MB of browser memory")
            idle = poll(repository, running, given.epochs, changes=False)
            print(f"a poll without changes: {idle:.1f} ms")
            busy = poll(repository, running, given.epochs, changes=True)
            print(f"a poll after {RUNNING} trials ended an epoch: {busy:.1f} ms")


if __name__ == "__main__":
    main()
