"""What each core does in each tenth of a second of a sweep, printed by ``python benchmarks/timeline.py [PICTURE.svg]``.

The sweep is that of ``main_job.py``: 16 trials of five epochs, two workers. Every tenth of a second, what each of
its threads has computed is read from ``/proc``, with the core on which it ran. A tenth of a core that nobody of the
sweep used is shown as idle, so the machine should do nothing else::

    SWEEPER_BENCHMARK_TRIALS=64 python benchmarks/timeline.py timeline.svg
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

HERE = Path(__file__).parent
STUDY = str(HERE / "digits.py")
TRIALS = int(os.environ.get("SWEEPER_BENCHMARK_TRIALS", "16"))
TENTH = 0.1
TICK = 1 / os.sysconf("SC_CLK_TCK")
LETTERS = {"command": "c", "imports": "i", "server": "s", "audit": "A", "idle": "."}
COLOURS = {"c": "#5f9e6e", "i": "#4878a8", "s": "#857aab", "A": "#b55d60", ".": "#eeeeee"}
ODD, EVEN = "#e08a3c", "#d0b08f"

Tenth = dict[int, dict[str, float]]
"""The seconds that each role used in a tenth of a second, by core."""


def threads(pid: int) -> Iterator[tuple[int, float, int]]:
    """Yield each thread of a process: its id, its processor seconds and its core."""
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return
    for task in tasks:
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(task.name), (int(fields[11]) + int(fields[12])) * TICK, int(fields[36])


def role_of(process: psutil.Process, command: int, begun: set[int]) -> str:
    """Return what a process of the sweep does: ``"trial 3"``, or a key of `LETTERS`."""
    if process.pid == command:
        return "command"
    try:
        log = str(Path(f"/proc/{process.pid}/fd/1").readlink())
    except OSError:
        return "server"
    trial = re.search(r"trial-(\d+)/attempt", log)
    if trial is None:
        return "server" if begun else "imports"
    begun.add(int(trial[1]))
    return "audit" if "audit" in log else f"trial {int(trial[1])}"


def observed(words: list[str]) -> tuple[list[Tenth], float]:
    """Run a command; return, for each tenth of a second, the seconds of each role by core, and its duration."""
    began = time.perf_counter()
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command, begun = psutil.Process(running.pid), set[int]()
    before: dict[int, float] = {}
    tenths: list[Tenth] = []
    while running.poll() is None:
        time.sleep(max(0.0, began + TENTH * (len(tenths) + 1) - time.perf_counter()))
        by_core: Tenth = defaultdict(dict)
        try:
            family = [command, *command.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        for process in family:
            role = role_of(process, command.pid, begun)
            for task, seconds, core in threads(process.pid):
                spent = seconds - before.get(task, 0.0)
                by_core[core][role] = by_core[core].get(role, 0.0) + spent
                before[task] = seconds
        tenths.append(by_core)
    return tenths, time.perf_counter() - began


def letter(used: Mapping[str, float]) -> str:
    """Return who used most of a core in a tenth of a second; a trial is the last digit of its number."""
    idle = TENTH - sum(used.values())
    role, most = max(used.items(), key=lambda item: item[1], default=("idle", 0.0))
    if idle > most:
        return "."
    return LETTERS.get(role) or role[-1]


def picture(rows: Mapping[int, str]) -> str:
    """Return the cores as rows of tenths, in SVG."""
    width = 1000 / max(map(len, rows.values()))
    parts = []
    for row, (core, line) in enumerate(sorted(rows.items())):
        parts.append(f'<text x="0" y="{row * 50 + 26}">core {core}</text>')
        for tenth, each in enumerate(line):
            colour = COLOURS.get(each) or (ODD if each in "13579" else EVEN)
            parts.append(
                f'<rect x="{60 + tenth * width:.2f}" y="{row * 50 + 6}" width="{width + 0.1:.2f}" '
                f'height="32" fill="{colour}"/>'
            )
    for second in range(0, max(map(len, rows.values())) + 1, 10):
        x = 60 + second * width
        parts.append(f'<text x="{x:.1f}" y="{len(rows) * 50 + 10}">{second // 10}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1080 {len(rows) * 50 + 20}" '
        'width="1080" font-family="sans-serif" font-size="13" role="img">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        run = [sys.executable, "-m", "sweeper", "run", STUDY, "--workers", "2"]
        words = [*run, "--trials", str(TRIALS), "--runs-dir", f"{temporary}/runs"]
        storage = ["--storage", f"sqlite:///{temporary}/runs/sweeper.db"]
        tenths, seconds = observed([*words, *storage])
    cores = range(os.cpu_count() or 1)
    rows = {core: "".join(letter(each.get(core, {})) for each in tenths) for core in cores}
    print(f"{TRIALS} trials, two workers: {seconds:.1f} s; a column is a tenth of a second")
    print("c command, i imports of the fork server, s the server, A an audit, 0-9 a trial, . idle")
    for begin in range(0, len(tenths), 100):
        for core, line in rows.items():
            print(f"core {core}  {line[begin : begin + 100]}")
        print()
    totals: dict[str, float] = {}
    for each in tenths:
        for used in each.values():
            for role, spent in used.items():
                kind = "trials" if role.startswith("trial") else role
                totals[kind] = totals.get(kind, 0.0) + spent
    totals["idle"] = len(cores) * seconds - sum(totals.values())
    for role, spent in sorted(totals.items(), key=lambda item: -item[1]):
        print(f"{spent:7.1f} s  {role}")
    first = next((i for i, each in enumerate(tenths) if _trains(each)), 0) * TENTH
    print(f"{first:7.1f} s  until the first trial's process begins")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(picture(rows))


def _trains(by_core: Tenth) -> bool:
    return any(role.startswith("trial") for used in by_core.values() for role in used)


if __name__ == "__main__":
    main()
