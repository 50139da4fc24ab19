"""``logs``, and ``logs -f``: a running trial's log, attempt after attempt."""

from pathlib import Path

import pytest
from drawn_studies import attempt, trial_record


def log_of(number):
    return Path(f"runs/digits/trial-00000/attempt-0{number}/log.txt")


def write_log(number, text):
    path = log_of(number)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


FIRST = attempt(1, "complete")


@pytest.fixture
def begun_again(reader):
    """A second attempt of the trial runs on the same machine."""
    reader.put(trial_record(0, attempts=(FIRST, attempt(2, None, (45, None)))))


def test_logs_prints_the_newest_attempts_log(call, begun_again):
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


def test_an_earlier_attempts_log_is_printed_and_named_where_the_newest_is_empty(call, begun_again):
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
    reader.put(trial_record(0, state="waiting", attempts=()))
    answer = call("logs", "digits", "0")
    assert answer.code == 1
    assert "has not begun" in answer.err


def followed(monkeypatch, *steps):
    """Have each wait of ``logs -f`` be one of ``steps``."""
    waits = iter(steps)

    monkeypatch.setattr("sweeper.cli.reading.time.sleep", lambda seconds: next(waits)())


def test_following_a_log_goes_on_with_the_next_attempt_and_ends_with_the_trial(
    call, reader, monkeypatch
):
    def trial(state, *attempts):
        reader.put(trial_record(0, state=state, attempts=attempts))

    def append(number, text):
        with log_of(number).open("ab") as log:
            log.write(text)

    def goes_on():
        append(1, b"\xa9 last of the first\n")
        trial("running", FIRST, attempt(2, None))
        write_log(2, "second\n")

    def ends():
        append(2, b"the end\n")
        trial("complete", FIRST, attempt(2, "complete"))

    trial("interrupted", FIRST)
    write_log(1, "first\n")
    followed(monkeypatch, lambda: append(1, b"half of \xc3"), goes_on, ends)
    answer = call("logs", "digits", "0", "-f")
    assert answer.out == "first\nhalf of é last of the first\nsecond\nthe end\n"
    assert "resumes as attempt 2" in answer.err
    assert answer.code == 0


def test_a_log_that_is_followed_may_be_left_with_ctrl_c(call, reader, monkeypatch):
    reader.put(trial_record(0, state="running"))
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
    reader.put(trial_record(0, state=state))
    answer = call("logs", "digits", "0", *flags)
    assert (answer.code, answer.out) == (1, "")
    assert "attempt-01/log.txt" in answer.err
    assert "host-a" in answer.err
    if flags:
        assert call("logs", "digits", "0", *flags, "--json").code == 2
