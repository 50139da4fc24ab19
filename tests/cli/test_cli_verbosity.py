"""``-q`` and ``-v`` of the verbs that show progress."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_fakes import Call, FakeSweep

from sweeper.errors import SweeperError
from sweeper.records.events import AttemptEnded, CheckpointKept, Event, Notice
from sweeper.records.results import StudyResults
from sweeper.run.options import RunRequest

EVENTS: list[Event] = [
    CheckpointKept(0, 20, 1000, 0.1, 0.0),
    AttemptEnded(0, 1, "complete", 0.5),
    AttemptEnded(1, 1, "failed", None, "ValueError: no"),
    Notice("worth knowing"),
]


@pytest.fixture
def busy(sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch) -> FakeSweep:
    """A run in which something happens."""

    def run_sweep(request: RunRequest) -> StudyResults:
        results = sweep(request)
        for event in EVENTS:
            request.listener(event)
        return results

    monkeypatch.setattr(sys.modules["sweeper.run.run"], "run_sweep", run_sweep)
    return sweep


def told(err: str) -> list[str]:
    lines = [line for line in err.splitlines() if not line.endswith(" ...")]
    return [" ".join(line.split()[:5]) for line in lines]


ENDED = ["trial 0 attempt 1 complete", "trial 1 attempt 1 failed", "notice: worth knowing"]


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ((), ["study digits: 0/2 done, 1", *ENDED]),
        (("-q",), ENDED[1:]),
        (("--verbose",), ["study digits: 0/2 done, 1", "trial 0 checkpoint at step", *ENDED]),
    ],
)
@pytest.mark.parametrize("verb", [("run", "s.py"), ("resume", "digits")])
def test_as_much_is_told_as_was_asked_for(
    call: Call, busy: FakeSweep, verb: tuple[str, str], flags: tuple[str, ...], lines: list[str]
) -> None:
    del busy
    answer = call(*verb, *flags)
    assert told(answer.err) == lines
    quiet = "-q" in flags
    assert answer.err.startswith("importing TensorFlow and") != quiet, "before all else"
    assert (" ...\n" in answer.err) != quiet
    assert answer.out, "the summary is printed however quiet the progress is"


@pytest.mark.parametrize(
    "verb", [("run", "s.py"), ("worker", "s"), ("verify", "s"), ("evaluate", "s")]
)
def test_more_and_less_at_once_is_refused(call: Call, verb: tuple[str, str]) -> None:
    answer = call(*verb, "-q", "-v")
    assert answer.code == 2
    assert "--quiet and --verbose" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "digits", "--data", "data/held-out.csv:data"),
        ("export", "digits", "--format", "keras", "--output", "model.h5"),
    ],
)
def test_a_wrong_suffix_is_refused_before_anything_large_is_imported(
    words: tuple[str, ...],
) -> None:
    program = (
        "import sys; from sweeper.cli.main import main; code = main(sys.argv[1:]);"
        "print(code, *{'tensorflow', 'optuna', 'sqlalchemy'} & {*sys.modules})"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *words], text=True, capture_output=True, check=True
    )
    assert ran.stdout == "2\n", ran.stderr
    assert words[-1].partition(":")[0] in ran.stderr


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    ("verb", "imported"),
    [
        ("verify", "sweeper.checks.verify.verify_study"),
        ("evaluate", "sweeper.api.evaluating.evaluate_study"),
        ("worker", "sweeper.run.cluster.host.run_worker"),
    ],
)
def test_what_is_imported_is_said_before_it_is(
    verb: str,
    imported: str,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    quiet: bool,
) -> None:
    said: list[str] = []

    def slow(*_arguments: object) -> None:
        said.append(capsys.readouterr().err)
        msg = "it was only to be called"
        raise SweeperError(msg)

    monkeypatch.setattr(imported, slow)
    assert call(verb, "digits", *(["-q"] if quiet else [])).code == 1
    assert said == ["" if quiet else "importing TensorFlow and the study digits ...\n"]
