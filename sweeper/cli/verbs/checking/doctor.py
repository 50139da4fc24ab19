"""``doctor``: what this machine can promise, and how the runs directory and the database are.

Exit code 0 where everything is in order, 1 where something is broken so that no study can run, 4
where something that is promised by default cannot be promised here. Notes change no exit code.
"""

import typer

from sweeper.cli.options import AsJson, Debug, RunsDir, Storage
from sweeper.cli.output import print_json, print_table


def doctor(
    *,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Check versions, devices, files and the database; exit 1 if broken, 4 if a promise cannot hold."""
    from sweeper.diagnosing.diagnose import diagnose
    from sweeper.settings import load_settings

    settings = load_settings(storage=storage, runs_dir=runs_dir)
    diagnosis = diagnose(settings)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        from sweeper.report.diagnosis import diagnosis_page

        print_table(diagnosis_page(diagnosis))
    if diagnosis.exit_code:
        raise typer.Exit(diagnosis.exit_code)
