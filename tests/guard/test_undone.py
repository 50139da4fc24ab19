"""What an inline trial changes in the objects of the file is undone: the next one trains as if it were the first.

Each file of `pitfalls/undone` shares an object that training changes. So the guard need not refuse it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from corpus import PITFALLS, UNDONE, forget_modules
from plain_settings import plain_settings

from sweeper.definition.loading import load_definition
from sweeper.run.protocol.messages import Assignment, Failed, Finished
from sweeper.run.worker.inline import InlineTrials
from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything
from sweeper.train.userstate import undoing


class Worker:
    """A worker in this process, which keeps what the trial ended with."""

    def __init__(self) -> None:
        self.end: Finished | Failed | None = None

    def handle(self, message: Any) -> None:
        if isinstance(message, Finished | Failed):
            self.end = message

    def stop_requested(self, *, inside: bool = False) -> bool:
        del inside
        return False


def digest_of_trial(file: Path, directory: Path, numbers: tuple[int, ...]) -> str:
    """Import the study and run the trials in this process; return the digest of the last one."""
    before = set(sys.modules)
    seed_everything(IMPORT_SEED)
    trials = InlineTrials(load_definition(os.path.relpath(file)))
    try:
        for number in numbers:
            worker, place = Worker(), directory / f"{len(numbers)}-{number}"
            (place / "files").mkdir(parents=True)
            assignment = Assignment(
                plain_settings(epochs=2),
                number=number,
                attempt=1,
                checkpoints=(str(place / "checkpoints"),),
                files=str(place / "files"),
                log=str(place / "log.txt"),
            )
            trials(assignment, worker)  # type: ignore[arg-type]
            assert isinstance(worker.end, Finished), worker.end
    finally:
        forget_modules(before, PITFALLS)
    return str(worker.end.digest)


BY_DEFAULT = {"shared_generator", "unbuilt_augmentation", "module_dataset"}


@pytest.mark.parametrize(
    "file",
    [f if f.stem in BY_DEFAULT else pytest.param(f, marks=pytest.mark.whole) for f in UNDONE],
    ids=lambda file: file.stem,
)
def test_an_inline_trial_trains_as_in_a_process_without_the_ones_before(
    file: Path, tmp_path: Path
) -> None:
    assert digest_of_trial(file, tmp_path, (0, 1)) == digest_of_trial(file, tmp_path, (1,))


def test_control_where_nothing_is_undone_the_next_trial_trains_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def nothing(*_arguments: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(undoing, "changes_undone", nothing)
    file = next(file for file in UNDONE if file.stem == "shared_generator")
    assert digest_of_trial(file, tmp_path, (0, 1)) != digest_of_trial(file, tmp_path, (1,))
