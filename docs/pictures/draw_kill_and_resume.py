"""Picture of a kill and a resume with equal digests: runs the commands and draws lines of what they print.

    .venv/bin/python docs/pictures/draw_kill_and_resume.py

A first sweep runs without a kill, for the digest to compare with; both take some two minutes on two cores. No line is
written here: each was printed by a command, and the script ends with an error if the digests differ.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_name("kill-and-resume.svg")
STUDY = "digits-learning-rate"
FILE = "studies/digits_learning_rate.py"
WIDTH = 96
TRIAL = 3
"""The trial that is killed in its training; trials before it are complete by then."""

FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="A killed sweep is resumed, and its digest equals that of a sweep without the kill">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""The template of rich, without a font that a browser would load from elsewhere."""


class Session:
    """A terminal in a directory with the study, and the lines of it that are drawn."""

    def __init__(self, directory: Path) -> None:
        """Copy the study into ``directory``."""
        self._directory = directory
        (directory / "studies").mkdir()
        (directory / FILE).write_text((ROOT / FILE).read_text())
        self.console = Console(
            record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor"
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``sweeper`` with these arguments, in a process group that can be killed."""
        return subprocess.Popen(
            [Path(sys.executable).with_name("sweeper"), *words],
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def output(self, *words: str) -> list[str]:
        """Return the lines that a command prints."""
        process = self.start(*words)
        lines = [line.rstrip() for line in process.stdout or ()]
        if process.wait():
            raise RuntimeError("\n".join(lines))
        return lines

    def draw_command(self, text: str, remark: str = "") -> None:
        """Draw a prompt with a command, and a remark behind it."""
        line = Text.assemble(
            ("$ ", "bold green"), (text, "bold"), (f"  # {remark}" if remark else "", "dim")
        )
        self.console.print(line, no_wrap=True)

    def draw(self, *lines: str, style: str = "") -> None:
        """Draw lines, cut at the terminal's width."""
        for line in lines:
            self.console.print(Text(line, style), no_wrap=True, overflow="ellipsis")


def run_until_killed(session: Session) -> list[str]:
    """Run the study, kill all of it while `TRIAL` trains, and return what it printed."""
    process = session.start("run", FILE)
    lines = []
    for line in process.stdout or ():
        lines.append(line.rstrip())
        if re.match(rf"trial {TRIAL} epoch 1\d/", line):
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.wait()
    return lines


def of_trial(lines: list[str]) -> list[str]:
    """Return the lines about `TRIAL`, without the state of the whole study."""
    return [line.partition(" [")[0] for line in lines if line.startswith(f"trial {TRIAL} ")]


def digest(session: Session, *options: str) -> str:
    """Draw the digest of `TRIAL` as ``sweeper show`` prints it, and return the line."""
    lines = session.output("show", STUDY, str(TRIAL), *options)
    [line] = [line for line in lines if line.startswith("digest")]
    return line


def main() -> None:
    """Run both sweeps, and draw the killed one."""
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory))
        session.output("run", FILE, "--runs-dir", "uninterrupted")
        killed = run_until_killed(session)
        session.draw_command(f"sweeper run {FILE}")
        session.draw(next(line for line in killed if line.startswith("study ")), "…")
        session.draw(*of_trial(killed)[-2:])
        session.draw("Killed", style="bold red")
        resumed = session.output("resume", STUDY)
        session.draw_command(f"sweeper resume {STUDY}")
        session.draw(*of_trial(resumed)[:3], "…", *of_trial(resumed)[-2:], "…")
        session.draw(*[line for line in resumed if " done, " in line and "complete" in line][-1:])
        interrupted = digest(session)
        session.draw_command(f"sweeper show {STUDY} {TRIAL} | grep digest")
        session.draw(interrupted, style="bold bright_green")
        uninterrupted = digest(session, "--runs-dir", "uninterrupted")
        command = f"sweeper show {STUDY} {TRIAL} --runs-dir uninterrupted | grep digest"
        session.draw_command(command, "nobody killed it")
        session.draw(uninterrupted, style="bold bright_green")
    if interrupted != uninterrupted:
        sys.exit(f"the digests differ: {interrupted}, {uninterrupted}")
    session.console.save_svg(
        str(PICTURE), title="", theme=MONOKAI, code_format=FORMAT, unique_id="kill"
    )
    print(PICTURE)


if __name__ == "__main__":
    main()
