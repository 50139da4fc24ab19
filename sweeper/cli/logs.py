"""``logs``: what a trial's process printed, from the file beside its attempt."""

import sys

from sweeper.cli.options import AsJson, Debug, RunsDir, Storage, StudyName, TrialNumber
from sweeper.cli.output import print_json
from sweeper.cli.reading import open_reader, read_settings
from sweeper.cli.verbs import VerbGroup
from sweeper.errors import SweeperError
from sweeper.paths import RunPaths

__all__ = ["GROUP"]


def logs(
    study: StudyName,
    number: TrialNumber,
    *,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Print the log of a trial's newest attempt."""
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        attempts = reader.trial(study, number).attempts
    if not attempts:
        msg = f"trial {number} of {study!r} has not begun, so it has no log; see `sweeper status`"
        raise SweeperError(msg)
    attempt = max(record.number for record in attempts)
    path = RunPaths(settings.runs_dir, study).log(number, attempt)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        host = next(record.host for record in attempts if record.number == attempt)
        msg = (
            f"the log {path} of attempt {attempt} cannot be read: {error.strerror or error}; "
            f"it ran on {host}, below that machine's --runs-dir"
        )
        raise SweeperError(msg) from None
    if as_json:
        print_json(
            {
                "study": study,
                "number": number,
                "attempt": attempt,
                "path": str(path),
                "text": text,
            }
        )
        return
    sys.stdout.write(text)


GROUP = VerbGroup(title="Read", order=21, verbs=(logs,))
