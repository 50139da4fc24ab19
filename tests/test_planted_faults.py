"""Faults planted one at a time in a copy of the code: tests of the default tier fail for each.

They are planted in the nightly tier: each fault runs a few files, in a process of their own, until three tests have failed.
With ``-s`` the names of those are printed beside each fault.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """A line of the code, what is planted in its place, and the files of tests that must notice.

    Attributes:
        file: Below ``sweeper/``.
    """

    name: str
    file: str
    line: str
    planted: str
    tests: str


FAULTS = (
    Fault(
        "a superseded attempt may write",
        "db/attempts.py",
        "if row.outcome is None and row.attempt == row.current_attempt:",
        "if row is not None:",
        "conformance/test_repository.py",
    ),
    Fault(
        "a lease never ends",
        "db/leases.py",
        "return sa.func.coalesce(Attempt.lease_until, Attempt.started_at) < UtcNow()",
        "return sa.false()",
        "conformance/test_repository_leases.py",
    ),
    Fault(
        "a trial waits for one trial less than its window",
        "db/rungs.py",
        "lowest <= number - study.window:",
        "lowest <= number - study.window - 1:",
        "conformance/test_repository.py",
    ),
    Fault(
        "an objective that is NaN is accepted",
        "db/attempts.py",
        'if ending.outcome == "complete" and any(math.isnan(value) for value in values):',
        "if not token:",
        "conformance/test_repository.py",
    ),
    Fault(
        "all trials have the seed of the study",
        "train/randomness/seeds.py",
        "[self.study_seed, self.number], spawn_key=key",
        "[self.study_seed], spawn_key=key",
        "train/test_fresh_entropy.py",
    ),
    Fault(
        "a study is imported without a seed",
        "run/launch/sources.py",
        "seed_everything(IMPORT_SEED)",
        "pass",
        "runs/test_isolation.py",
    ),
    Fault(
        "files are not on the disk before the rename",
        "checkpoint/store.py",
        "self._operations.fsync(descriptor)",
        "pass",
        "checkpoint/test_faults.py",
    ),
    Fault(
        "a damaged tensor is taken as it is",
        "checkpoint/format.py",
        '_expect(path, "digest", xxhash.xxh3_128_hexdigest(text), entry.digest)',
        "pass",
        "checkpoint/test_corruption.py",
    ),
    Fault(
        "what a callback's get_state returns is not in checkpoints",
        "train/state/state.py",
        "CallbackStates(roots.callbacks, roots.tracked, roots.directory),",
        "CallbackStates((), {}),",
        "train/test_resume_is_exact.py",
    ),
    Fault(
        "the optimizer's variables are not in checkpoints",
        "train/state/state.py",
        'Variables("optimizer", lambda: reach.now.own_optimizer),',
        'Variables("optimizer", lambda: ()),',
        "train/test_resume_is_exact.py",
    ),
    Fault(
        "an audit always agrees",
        "run/auditing.py",
        "return self.other_end is None and not self.differing",
        "return True",
        "replay/test_every_component.py",
    ),
    Fault(
        "a layer that is older than its trial is not refused",
        "guard/guard.py",
        "aged = {id(obj) for obj in objects if gc.is_tracked(obj)}",
        "return set()",
        "guard/test_pitfalls.py",
    ),
    Fault(
        "files that a trial uses are not recorded",
        "files/recorder.py",
        "self.find.cache_clear()\n        self.active = True",
        "self.find.cache_clear()",
        "runs/test_files.py",
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what is in the repository, in which faults are planted and undone."""
    directory = tmp_path_factory.mktemp("copy")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    return directory


def failing(copy, tests):
    """Return the names of the first tests of these files that fail in the copy."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--processes", "0", "-q", "--maxfail=3"),
            *(f"tests/{name}" for name in tests.split()),
        ],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    names = re.findall(r"^(?:FAILED|ERROR) \S+?::([^\s\[]+)", run.stdout, re.MULTILINE)
    assert run.returncode == (1 if names else 0), run.stdout + run.stderr
    return names


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_line_of_a_fault_is_in_the_code(fault):
    text = (ROOT / "sweeper" / fault.file).read_text()
    assert text.count(fault.line) == 1, "the code has changed: plant the fault where it is now"


@pytest.mark.whole
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_fails_tests_of_the_default_tier(fault, copy):
    file = copy / "sweeper" / fault.file
    text = file.read_text()
    file.write_text(text.replace(fault.line, fault.planted))
    try:
        names = failing(copy, fault.tests)
    finally:
        file.write_text(text)
    print(f"\n{fault.name}: {', '.join(dict.fromkeys(names))}")
    assert names, f"no test of {fault.tests} fails where {fault.name}"


@pytest.mark.whole
def test_control_the_copy_without_a_fault_passes(copy):
    assert failing(copy, "replay/test_every_component.py") == []
