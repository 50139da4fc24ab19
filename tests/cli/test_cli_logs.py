"""``logs -f``: a running trial's log, attempt after attempt."""

from dataclasses import replace
from pathlib import Path

from cli_fakes import trial_record

from sweeper.cli.reading import LOOK_SECONDS
from sweeper.support.paths import RunPaths


def write_log(attempt, text):
    path = RunPaths(Path("runs"), "digits").log(0, attempt)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


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


def test_a_log_on_another_machine_is_not_waited_for(call, reader):
    reader.trial_records = (trial_record(0, state="running"),)
    answer = call("logs", "digits", "0", "-f")
    assert (answer.code, answer.out) == (1, "")
    assert "host-a" in answer.err
    assert call("logs", "digits", "0", "-f", "--json").code == 2
