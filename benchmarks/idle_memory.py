"""Whether a worker grows: resident memory of it and its fork server, after 300 trials and after 10.

Usage: ``python benchmarks/idle_memory.py``. The trials do nothing (`noop_study`), so what is seen is
what is left behind in the two processes that live on.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from ratios import Ratio

STUDY = Path(__file__).with_name("noop_study.py")
EARLY, LATE, TOTAL = 10, 300, 320
BOUND = 1.1
MEGABYTE = 2**20


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        words = ["run", str(STUDY), "--workers", "2", "--trials", str(TOTAL)]
        run = subprocess.Popen(
            [sys.executable, "-m", "sweeper", *words, "--runs-dir", directory],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stderr is not None
        seen: dict[int, dict[str, int]] = {}
        done = 0
        with run.stderr:
            for line in run.stderr:
                if " complete value=" in line:
                    done += 1
                    if done in (EARLY, LATE):
                        seen[done] = memory_of(run.pid)
        assert run.wait() == 0
    for name in ("worker", "server"):
        early, late = seen[EARLY][name] / MEGABYTE, seen[LATE][name] / MEGABYTE
        what = f"resident memory of the {name} after {LATE} trials against after {EARLY}"
        print(Ratio(what, [late], [early], "MB", BOUND, True).line())


def memory_of(pid: int) -> dict[str, int]:
    """Resident bytes of a run's two lasting processes."""
    worker = psutil.Process(pid)
    [server] = worker.children()
    return {"worker": worker.memory_info().rss, "server": server.memory_info().rss}


if __name__ == "__main__":
    main()
