"""Lesson 2: kill a sweep in the middle, resume it, and compare with one that ran undisturbed.

    python examples/resume_after_a_kill.py

The killed one is started as a process group of its own and ends by SIGKILL: no handler runs, no
file is closed, nothing says goodbye.
"""

from __future__ import annotations

import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time

from compare_learning_rates import study

SCRIPT = Path(__file__).with_name("compare_learning_rates.py")


def kill_in_the_middle(runs_dir: Path) -> None:
    """Start the sweep from the command line, and kill it once it has written a checkpoint."""
    command = [sys.executable, "-m", "sweeper", "run", str(SCRIPT), "--runs-dir", str(runs_dir)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not list(runs_dir.rglob("step-*")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        undisturbed = study.run(runs_dir=Path(temporary) / "undisturbed", workers=2)
        killed = Path(temporary) / "killed"
        kill_in_the_middle(killed)
        resumed = study.resume(runs_dir=killed, workers=2)
        for before, after in zip(undisturbed.trials, resumed.trials, strict=True):
            starts = [attempt.start_step for attempt in after.attempts]
            print(f"trial {after.number}: attempts started at steps {starts}")
            print(f"  equal to the undisturbed one: {before.digest == after.digest}")
            if (before.digest, before.epochs) != (after.digest, after.epochs):
                sys.exit("the resumed trial differs")


if __name__ == "__main__":
    main()
