"""The test's side of ``python tests/exactness --serve``: a name and a number of kills go there, a verdict comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import exactness_starting as starting
import exactness_verdicts as verdicts
from exactness_list import StudyPart

HERE = Path(__file__).parent


class JudgingServer:
    """A process that has imported TensorFlow and judges one study after another.

    Args:
        groups: The files whose imports it makes beforehand.
        before: ``module:function``, called in every trial process before the study is imported.
    """

    def __init__(self, groups: tuple[str, ...], before: str | None = None) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        words = [sys.executable, str(HERE), "--serve", *groups]
        self._process = subprocess.Popen(
            [*words, "--before", before] if before else words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def judge(
        self, part: StudyPart, directory: Path, kills: int = verdicts.ALL_KILLS
    ) -> verdicts.Verdict:
        """Run the study killed and whole, and compare."""
        if part.own_server:
            with starting.warm_servers(part) as start:
                return verdicts.judge(part, directory, start, kills)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{part.name} {kills}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the server of the corpus died while it judged {part.name}"
        return verdicts.Verdict(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
