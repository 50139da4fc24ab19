"""The corpus of pitfalls, each study built as two trials build it, one after the other."""

import gc
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from plain_settings import plain_settings
from sweeps import sweep

from sweeper.declarations.space import Categorical
from sweeper.definition.loading import load_definition
from sweeper.definition.trial import Trial
from sweeper.errors import IndependenceError
from sweeper.guard import guard
from sweeper.run.protocol.messages import Assignment
from sweeper.run.trial.parts import make_plan
from sweeper.train.randomness.seeds import IMPORT_SEED, TrialSeeds, seed_everything

PITFALLS = Path(__file__).parents[1] / "corpus" / "pitfalls"
REFUSED = sorted((PITFALLS / "refused").glob("*.py"))
INLINE = sorted((PITFALLS / "inline").glob("*.py"))
"""Refused with isolation='inline' alone: callbacks, which a process a trial makes each trial's own."""
UNDONE = sorted((PITFALLS / "undone").glob("*.py"))
"""Accepted: what an inline trial changes there is undone at its end."""
ALLOWED = sorted((PITFALLS / "allowed").glob("*.py"))


@dataclass
class Verdict:
    """What became of two trials: the message of the one that was refused, and all warnings."""

    refusal: str = ""
    trial: int | None = None
    warnings: list[str] = field(default_factory=list)

    def described(self):
        if self.refusal:
            return f"trial {self.trial}: {self.refusal}\n"
        return "".join(f"warning: {warning}\n" for warning in self.warnings)


def expected(file):
    """What stands beside a file of the corpus; nothing for one that passes without a word."""
    beside = file.with_suffix(".txt")
    return beside.read_text() if beside.exists() else ""


def refused_in_a_process(file):
    """The message that the first trial of a study is refused with in a process of its own."""
    trial, _, message = expected(file).strip().partition(": ")
    return message if file in REFUSED and trial == "trial 0" else ""


def judge(file, directory, *, inline=True):
    """Import a study and run its factories: for two trials in this process, or for one alone."""
    import keras

    modules = set(sys.modules)
    verdict = Verdict()
    seed_everything(IMPORT_SEED)
    definition = load_definition(os.path.relpath(file))
    plans = []
    try:
        for number in (0, 1) if inline else (0,):
            seeds = TrialSeeds(0, number)
            trial = Trial(number=number, seed=seeds.root, directory=directory, ask=_first)
            assignment = Assignment(
                plain_settings(name=definition.name),
                number=number,
                attempt=1,
                checkpoints=(str(directory),),
                files=str(directory),
                log="",
            )
            try:
                plans.append(
                    make_plan(
                        definition,
                        assignment,
                        trial,
                        seeds,
                        notify=verdict.warnings.append,
                        process="inline" if inline else "trial",
                    )
                )
            except IndependenceError as error:
                verdict.refusal = str(error)
                verdict.trial = number
                break
    finally:
        forget_modules(modules, PITFALLS)
        keras.backend.clear_session(free_memory=False)
        gc.unfreeze()
    return verdict


def swept(file, directory, isolation="auto"):
    """Run the two trials of a study, which is copied to the directory."""
    directory.mkdir(exist_ok=True)
    for source in (file, Path(__file__).with_name("small_study.py")):
        shutil.copy(source, directory)
    modules = set(sys.modules)
    path = [*sys.path]
    try:
        return sweep(directory / file.name, directory / "runs", workers=1, isolation=isolation)
    finally:
        sys.path[:] = path
        forget_modules(modules, directory)


def forget_modules(modules, directory):
    """Forget what was imported from ``directory`` since ``modules`` were the names of all modules."""
    for name in set(sys.modules) - modules:
        module = sys.modules[name]
        # A package without an __init__.py has no file, and still has its modules as attributes.
        files = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        if any(Path(file).is_relative_to(directory) for file in files if file):
            del sys.modules[name]


def _first(_name, distribution):
    if isinstance(distribution, Categorical):
        return distribution.choices[0]
    return distribution.low


@pytest.fixture(autouse=True)
def fresh_names():
    import keras

    keras.backend.clear_session(free_memory=False)
    yield
    keras.backend.clear_session(free_memory=False)


@pytest.fixture(autouse=True)
def no_modules_of_other_tests(monkeypatch):
    """A test's own studies are all of the user's: whatever pytest has imported would be searched too."""
    modules = set(sys.modules)
    real = guard.is_users_module
    monkeypatch.setattr(guard, "is_users_module", lambda n: n not in modules and real(n))
