"""The study that several modules compare with, run whole once, and commands in this process."""

import contextlib
import time
from dataclasses import replace

import pytest
from interruptions import INTERRUPTED_STUDY, WholeRun
from sweeps import Ended, results_of, sweep

from sweeper.cli.main import main

SHORT = replace(
    INTERRUPTED_STUDY,
    arguments="""objective="val_loss", epochs=12, trials=3, sampler="random", audit="off",
    checkpoint_every=Every(steps=7)""",
)
"""The interrupted study with half of its trials, so that one still waits for two workers; shorter."""


class Reference(WholeRun):
    """A study of which nothing is ever killed, run in this process, which is the same and quicker."""

    def __init__(self, study, directory):
        self.file = study.write(directory / "interrupted.py")
        self.runs = directory / "runs"
        begun = time.monotonic()
        swept = sweep(self.file, self.runs, workers=1, isolation="inline")
        self.seconds = time.monotonic() - begun
        self.results = results_of(swept.trials)


@pytest.fixture(scope="session")
def short():
    return SHORT


@pytest.fixture(scope="session")
def whole(short, tmp_path_factory):
    return Reference(short, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def here(capsys):
    """``sweeper WORDS`` in this process, which has imported everything; its trials have their own.

    What a command's own process does, signals and exit codes among it, needs ``command``.
    """

    def call(*words, cwd):
        capsys.readouterr()
        with contextlib.chdir(cwd):
            code = main([str(word) for word in words])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return call
