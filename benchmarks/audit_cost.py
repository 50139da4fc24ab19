"""What auditing itself costs a study: ``python benchmarks/audit_cost.py``.

The study of the README (30 epochs, the digits network) is run with two workers, of 16 and of 64
trials. Printed is the share of the audits in what the two slots worked: seconds of replaying and
comparing, against those and the seconds of all attempts. In turn
with the first, the same study is run with ``audit="off"``, to see what it costs from outside: by
the clock, and in the processor's seconds of all processes, which neighbours do not change.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
BOUNDS = {16: 0.06, 64: 0.05}
"""Audits are drawn so that they take 5% of a sweep; a short one also has the audit of its first trial."""


def written(directory: Path, audit: str) -> Path:
    """The study's file, with its policy of auditing set."""
    text = (ROOT / "studies" / "digits_learning_rate.py").read_text()
    assert "study = Study(" in text
    file = directory / f"digits_{audit}.py"
    file.write_text(text.replace("study = Study(", f'study = Study(\n    audit="{audit}",', 1))
    return file


def timed(directory: Path, audit: str, trials: int) -> tuple[float, float]:
    """Seconds by the clock, and of the processor in everything that was started."""
    directory.mkdir(parents=True)
    run = [sys.executable, "-m", "sweeper", "run", str(written(directory, audit))]
    run += ["--workers", "2", "--trials", str(trials), "--runs-dir", str(directory)]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("SWEEPER_")}
    environment["SWEEPER_STORAGE"] = f"sqlite:///{directory / 'sweeper.db'}"
    began, before = time.perf_counter(), _processor_seconds()
    subprocess.run(run, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    return time.perf_counter() - began, _processor_seconds() - before


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def share(directory: Path) -> tuple[float, float, int]:
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with Database.open(f"sqlite:///{directory / 'sweeper.db'}", create=False) as database:
        found = Repository(database)
        trials = Repository(database).trials("digits-learning-rate")
        audits = sum(audit.seconds for trial in trials for audit in trial.audits)
        ended = [attempt for trial in trials for attempt in trial.attempts]
        attempts = sum((a.ended_at - a.started_at).total_seconds() for a in ended if a.ended_at)
        return audits, attempts, found.exactness("digits-learning-rate").intervals


def main() -> int:
    holds = True
    with tempfile.TemporaryDirectory() as temporary:
        for trials in map(int, sys.argv[1:] or ("16", "64")):
            directory = Path(temporary) / str(trials)
            took = timed(directory / "auto", "auto", trials)
            audits, attempts, intervals = share(directory / "auto")
            part = audits / (audits + attempts)
            bound = BOUNDS.get(trials)
            kept = bound is None or part <= bound
            holds = holds and kept
            wanted = "" if bound is None else f"; wanted <= {bound:.0%}: {'yes' if kept else 'NO'}"
            print(f"{trials} trials: {intervals} intervals audited in {audits:.1f} s, attempts")
            print(f"    {attempts:.1f} s; share {part:.1%}{wanted}")
            without = timed(directory / "off", "off", trials)
            for what, ours, theirs in zip(("clock", "processor"), took, without, strict=True):
                more = (ours - theirs) / ours
                print(f"    {what}: {ours:.1f} s, and {theirs:.1f} s without; {more:.1%} of it")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
