"""What ``check`` prints, and what it exits with; the check itself is a fake."""

from dataclasses import replace

import pytest

from sweeper.replay.reports import CheckFinding, CheckReport, Estimate, Line

ESTIMATE = Estimate(
    steps_per_epoch=43,
    epoch_seconds=0.15,
    startup_seconds=0.5,
    trial_seconds=2.0,
    study_seconds=16.0,
    workers=2,
    checkpoint_bytes=1 << 20,
    checkpoints_kept=2,
    disk_bytes=32 << 20,
)
SOUND = CheckReport(
    study="digits",
    findings=(CheckFinding("note", "data", "the data are not shuffled", Line("s.py", 7)),),
    held=("two trials share none",),
    metrics=("loss", "val_loss"),
    estimate=ESTIMATE,
    seconds={"total": 8.0},
    steps=100,
)
BAD = replace(
    SOUND,
    findings=(
        CheckFinding("error", "independence", "layer [bold] is shared", Line("a/s.py", 12)),
        CheckFinding("warning", "settings", "deterministic=False"),
    ),
    estimate=None,
)


@pytest.fixture
def check(monkeypatch):
    """Put a fake check where the command line imports the real one; it keeps what it was given."""
    asked = []

    def fake(target, *, workers, tell):
        asked.append((target, workers))
        return BAD if target == "bad.py" else SOUND

    monkeypatch.setattr("sweeper.checks.check.check_study", fake)
    return asked


def test_a_study_that_holds_exits_with_0_and_says_what_to_type_next(call, check, bare_directory):
    answer = call("check", "s.py", "--workers", "3")
    assert answer.code == 0
    assert check == [("s.py", 3)]
    lines = answer.out.splitlines()
    assert lines[0] == "digits  holds  1 note"
    assert "note [data] s.py:7" in lines
    assert "holds    two trials share none" in lines
    assert any(
        "about 16s with 2 workers, 2.0s a trial (150ms an epoch of 43 steps" in line
        for line in lines
    )
    assert any("at most 32.0 MiB: 1.0 MiB a checkpoint, 2 kept" in line for line in lines)
    assert lines[-1] == "  sweeper run s.py --workers 3"
    assert list(bare_directory.iterdir()) == []


def test_an_error_among_the_findings_exits_with_4_and_has_its_line(call, check):
    answer = call("check", "bad.py")
    assert answer.code == 4
    lines = answer.out.splitlines()
    assert lines[0] == "digits  a promise does not hold  1 error, 1 warning"
    assert lines[2:4] == ["error [independence] a/s.py:12", "  layer [bold] is shared"]
    assert "warning [settings]" in lines
    assert not any("next:" in line for line in lines)


def test_json_is_one_value_with_every_field(call, check):
    answer = call("check", "bad.py", "--json")
    assert answer.code == 4
    assert answer.json["holds"] is False
    assert answer.json["findings"][0] == {
        "level": "error",
        "check": "independence",
        "message": "layer [bold] is shared",
        "file": "a/s.py",
        "line": 12,
    }
    assert answer.json["estimate"] is None
    assert call("check", "s.py", "--json").json["estimate"]["trial_seconds"] == 2.0
