"""The study that several modules compare with, run whole once, and commands in this process."""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from interruptions import INTERRUPTED_STUDY
from sweeps import Ended, Result, results_of, sweep

from sweeper.cli.main import main

SHORT = replace(
    INTERRUPTED_STUDY,
    arguments="""objective="val_loss", epochs=12, trials=3, sampler="random", audit="off",
    checkpoint_every=Every(steps=7)""",
)
"""The interrupted study with half of its trials, so that one still waits for two workers; shorter."""


@dataclass(frozen=True)
class Whole:
    """A study of which nothing is ever killed, run in this process: its file, runs and results."""

    file: Path
    runs: Path
    results: dict[int, Result]

    @classmethod
    def of(cls, study, directory):
        file = study.write(directory / "interrupted.py")
        swept = sweep(file, directory / "runs", workers=1, isolation="inline")
        return cls(file, directory / "runs", results_of(swept.trials))


@pytest.fixture(scope="session")
def short():
    return SHORT


@pytest.fixture(scope="session")
def whole(short, tmp_path_factory):
    return Whole.of(short, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def here(capsys):
    """``sweeper WORDS`` in this process, which has imported everything; its trials have their own.

    What a command's own process does, signals and exit codes among it, needs ``command``.
    """

    def call(*words, cwd):
        capsys.readouterr()
        with contextlib.chdir(cwd):
            code = main([str(word) for word in words])
        output = capsys.readouterr()
        return Ended(code, output.out, output.err)

    return call
