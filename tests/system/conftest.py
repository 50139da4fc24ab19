"""Studies that several modules compare with, each run whole once, and commands in this process."""

import contextlib
import time
from dataclasses import replace

import pytest
from interruptions import INTERRUPTED_STUDY, WholeRun
from pruned_study import PRUNED_STUDY
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


@pytest.fixture(scope="session")
def pruned_study():
    """The study of twelve trials with six, of which the last two are drawn from what others gave.

    So few have to be judged by a severe pruner, for some to end: those two.
    """
    changes = {
        "n_startup_trials=4": "n_startup_trials=2",
        "trials=12": 'trials=6, audit="off", seed=3',
        "MedianPruner(": "PercentilePruner(10.0, ",
    }
    arguments = PRUNED_STUDY.arguments
    for was, now in changes.items():
        assert was in arguments
        arguments = arguments.replace(was, now)
    return replace(PRUNED_STUDY, arguments=arguments)


@pytest.fixture(scope="session")
def pruned_sweep(pruned_study, tmp_path_factory):
    """A directory with the file of the pruned study, and what one worker made of it in ``one``."""
    directory = tmp_path_factory.mktemp("pruned")
    pruned_study.write(directory / "pruned.py")
    return directory, sweep(
        directory / "pruned.py", directory / "one", workers=1, isolation="inline"
    )


@pytest.fixture(scope="session")
def pruned(pruned_sweep):
    """The directory of the sweep."""
    return pruned_sweep[0]


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
