"""The test's side of ``python tests/exactness --serve``: a name and what is asked go there, an answer comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import exactness_audited as auditing
import exactness_starting as starting
import exactness_verdicts as verdicts
from exactness_list import StudyPart

from sweeper.execution.launch.hash_seed import HASH_SEED

HERE = Path(__file__).parent


class JudgingServer:
    """A process that has imported TensorFlow and judges one study after another.

    What a study's file imports it imports before the first study of that file.

    Args:
        program: What Python is to run for it, before the words; ``forked_servers`` gives one that
            need not import TensorFlow itself.
    """

    def __init__(self, program: tuple[str, ...] = ("-P",)) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program, str(HERE / "__main__.py"), "--serve"],
            env={
                **os.environ,
                **HASH_SEED,
            },  # as warm servers have it, and where they are forked from
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def judge(
        self,
        part: StudyPart,
        directory: Path,
        kills: int = verdicts.ALL_KILLS,
        before: str | None = None,
    ) -> verdicts.Verdict:
        """Run the study killed and whole, and compare.

        Args:
            part: The study.
            directory: For what the processes of real servers write.
            kills: How often it is killed.
            before: ``module:function``, called in every trial process before the study is imported.
        """
        if part.own_server:
            with starting.warm_servers(part) as start:
                return verdicts.judge(part, directory, start, kills)
        answer = self._ask(name=part.name, kills=kills, before=before)
        return verdicts.Verdict(**answer)

    def audit(self, part: StudyPart, before: str | None = None) -> auditing.Audited:
        """Audit two intervals of the study; ``before`` as for `judge`."""
        answer = self._ask(name=part.name, before=before, audits=True)
        return auditing.Audited(**{**answer, "caught": tuple(answer["caught"])})

    def _ask(self, **asked: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the server of the corpus died while it judged {asked['name']}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
