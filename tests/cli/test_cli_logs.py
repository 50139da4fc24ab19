"""``logs``, and ``logs -f``: a running trial's log, attempt after attempt."""

from dataclasses import replace
from pathlib import Path

import pytest
from cli_fakes import trial_record

from sweeper.cli.reading import LOOK_SECONDS
from sweeper.support.paths import RunPaths


def write_log(attempt, text):
    path = RunPaths(Path("runs"), "digits").log(0, attempt)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def begin_again(reader):
    """Let a second attempt of the trial begin on the same machine."""
    [first] = reader.trial_records[0].attempts
    second = replace(first, number=2, outcome=None, start_step=45, end_step=None, ended_at=None)
    # The order of the database, which nothing promises.
    reader.trial_records = (trial_record(0, attempts=(first, second)),)


def test_logs_prints_the_newest_attempts_log(call, reader):
    begin_again(reader)
    write_log(1, "first\n")
    path = write_log(2, "second é\n")
    assert call("logs", "digits", "0").out == "second é\n"
    assert call("logs", "digits", "0", "--json").json == {
        "study": "digits",
        "number": 0,
        "attempt": 2,
        "path": str(path),
        "text": "second é\n",
    }


def test_an_earlier_attempts_log_is_printed_and_named_where_the_newest_is_empty(call, reader):
    begin_again(reader)
    write_log(1, "first\n")
    write_log(2, "")
    answer = call("logs", "digits", "0")
    assert (answer.code, answer.out) == (0, "")
    assert "attempt 2 has printed nothing; attempts with output: 1 (--attempt)" in answer.err
    assert call("logs", "digits", "0", "--attempt", "1").out == "first\n"
    answer = call("logs", "digits", "0", "--attempt", "9")
    assert answer.code == 2
    assert "has attempts 1 to 2" in answer.err


def test_a_trial_that_has_not_begun_has_no_log(call, reader):
    reader.trial_records = (trial_record(0, state="waiting", attempts=()),)
    answer = call("logs", "digits", "0")
    assert answer.code == 1
    assert "has not begun" in answer.err


def followed(monkeypatch, *steps):
    """Have each wait of ``logs -f`` be one of ``steps``."""
    waits = iter(steps)

    def sleep(seconds):
        assert seconds == LOOK_SECONDS
        next(waits)()

    monkeypatch.setattr("sweeper.cli.reading.time.sleep", sleep)


def test_following_a_log_goes_on_with_the_next_attempt_and_ends_with_the_trial(
    call, reader, monkeypatch
):
    (first,) = reader.trial_records[0].attempts
    second = replace(first, number=2, outcome=None, ended_at=None)

    def trial(state, *attempts):
        reader.trial_records = (trial_record(0, state=state, attempts=attempts),)

    def append(attempt, text):
        with RunPaths(Path("runs"), "digits").log(0, attempt).open("ab") as log:
            log.write(text)

    def goes_on():
        append(1, b"\xa9 last of the first\n")
        trial("running", first, second)
        write_log(2, "second\n")

    def ends():
        append(2, b"the end\n")
        trial("complete", first, replace(second, outcome="complete"))

    trial("interrupted", first)
    write_log(1, "first\n")
    followed(monkeypatch, lambda: append(1, b"half of \xc3"), goes_on, ends)
    answer = call("logs", "digits", "0", "-f")
    assert answer.out == "first\nhalf of é last of the first\nsecond\nthe end\n"
    assert "resumes as attempt 2" in answer.err
    assert answer.code == 0


def test_a_log_that_is_followed_may_be_left_with_ctrl_c(call, reader, monkeypatch):
    reader.trial_records = (trial_record(0, state="running"),)
    write_log(1, "so far\n")

    def interrupt():
        raise KeyboardInterrupt

    followed(monkeypatch, interrupt)
    answer = call("logs", "digits", "0", "--follow")
    assert (answer.code, answer.out) == (130, "so far\n")


@pytest.mark.parametrize(("state", "flags"), [("complete", ()), ("running", ("-f",))])
def test_a_log_that_is_elsewhere_is_named_with_its_host_and_not_waited_for(
    call, reader, state, flags
):
    reader.trial_records = (trial_record(0, state=state),)
    answer = call("logs", "digits", "0", *flags)
    assert (answer.code, answer.out) == (1, "")
    assert "attempt-01/log.txt" in answer.err
    assert "host-a" in answer.err
    if flags:
        assert call("logs", "digits", "0", *flags, "--json").code == 2
