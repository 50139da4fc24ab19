"""``logs``: what a trial's process printed, from the file beside its attempt; ``-f`` goes on reading."""

import codecs
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import AsJson, Debug, RunsDir, Storage, StudyName, TrialNumber
from sweeper.cli.output import print_json
from sweeper.cli.reading import Reader, open_reader, read_settings
from sweeper.errors import Interrupted, SweeperError, UsageError
from sweeper.paths import RunPaths

if TYPE_CHECKING:
    from sweeper.results import AttemptRecord, TrialRecord

LOOK_SECONDS = 0.5
"""Between two looks at a log that is followed."""

_FINISHED = ("complete", "pruned", "failed")


def logs(
    study: StudyName,
    number: TrialNumber,
    *,
    follow: Annotated[
        bool,
        typer.Option(
            "-f",
            "--follow",
            metavar="",
            help="Follow the log, through all attempts, until the trial has its result.",
        ),
    ] = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Print the log of a trial's newest attempt."""
    if follow and as_json:
        msg = "--follow and --json were both given; give one of them: JSON is one whole value"
        raise UsageError(msg)
    settings = read_settings(storage, runs_dir)
    paths = RunPaths(settings.runs_dir, study)
    with open_reader(settings) as reader:
        if follow:
            _follow(reader, paths, study, number)
            return
        attempt = _newest(reader.trial(study, number))
    path = paths.log(number, attempt.number)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _unreadable(path, attempt, error) from None
    if as_json:
        print_json(
            {
                "study": study,
                "number": number,
                "attempt": attempt.number,
                "path": str(path),
                "text": text,
            }
        )
        return
    sys.stdout.write(text)


def _newest(trial: "TrialRecord") -> "AttemptRecord":
    if not trial.attempts:
        msg = (
            f"trial {trial.number} of {trial.study!r} has not begun, so it has no log; see "
            "`sweeper status`"
        )
        raise SweeperError(msg)
    return max(trial.attempts, key=lambda attempt: attempt.number)


def _unreadable(path: Path, attempt: "AttemptRecord", error: OSError) -> SweeperError:
    where = f"it ran on {attempt.host}, below that machine's --runs-dir"
    if attempt.host == socket.gethostname():
        where = (
            "it ran on this machine: give the --runs-dir of that run. A trial that ran inline has "
            "no log; what it said was said where it was started"
        )
    return SweeperError(
        f"the log {path} of attempt {attempt.number} cannot be read: {error.strerror or error}; "
        f"{where}"
    )


def _follow(reader: Reader, paths: RunPaths, study: str, number: int) -> None:
    """Print what each attempt writes, until the trial has its result or Ctrl-C ends it."""
    try:
        for text in _followed(reader, paths, study, number):
            sys.stdout.write(text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(Interrupted.exit_code) from None


def _followed(reader: Reader, paths: RunPaths, study: str, number: int) -> Iterator[str]:
    current: _Log | None = None
    while True:
        # How the trial stands is read before its log: what was written before it ended is there.
        trial = reader.trial(study, number)
        newest = _newest(trial)
        if current is None:
            current = _Log(paths.log(number, newest.number), newest)
        while current.attempt.number < newest.number:
            yield current.unread(is_over=True)
            following = min(
                (a for a in trial.attempts if a.number > current.attempt.number),
                key=lambda attempt: attempt.number,
            )
            typer.echo(f"trial {number} goes on as attempt {following.number}", err=True)
            current = _Log(paths.log(number, following.number), following)
        finished = trial.state in _FINISHED
        yield current.unread(is_over=finished)
        if finished:
            return
        time.sleep(LOOK_SECONDS)


class _Log:
    """One attempt's log, as far as it was read."""

    def __init__(self, path: Path, attempt: "AttemptRecord") -> None:
        self.attempt = attempt
        self._path = path
        self._read = 0
        # A look may come between two bytes of one letter.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def unread(self, *, is_over: bool) -> str:
        """Return the text written since the last call.

        Raises:
            SweeperError: It cannot be read, and no more will come to be.
        """
        try:
            with self._path.open("rb") as log:
                log.seek(self._read)
                written = log.read()
        except FileNotFoundError as error:
            if is_over or self.attempt.host != socket.gethostname():
                raise _unreadable(self._path, self.attempt, error) from None
            return ""
        except OSError as error:
            raise _unreadable(self._path, self.attempt, error) from None
        self._read += len(written)
        return self._decoder.decode(written, final=is_over)
