"""Bad input ends in one clear message and the right exit code, and leaves nothing half-written.

Every message of the command line is in `tests/cli/bad_input.py`; here is what takes a study that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from study_files import StudyText
from sweeps import Ended, command


def check_refused(ended: Ended, code: int, *texts: str) -> None:
    assert ended.code == code, ended.err
    assert ended.out == ""
    assert ended.err.count("error: ") == 1, ended.err
    for text in texts:
        assert text in ended.err
    assert "sweeper/run" not in ended.err, "a traceback of ours"


def written(directory: Path) -> list[str]:
    return [p.name for p in directory.iterdir() if p.suffix != ".py" and p.name != "__pycache__"]


def test_a_module_that_cannot_be_imported_shows_its_own_traceback_once(tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("def work():\n    raise KeyError('colour')\n")
    file = tmp_path / "broken.py"
    file.write_text("import sibling\n\nsibling.work()\n")
    ended = command("run", file, cwd=tmp_path)
    where = f"importing {file} raised KeyError: 'colour' ({tmp_path / 'sibling.py'}, line 2)"
    check_refused(ended, 1, where)
    assert ended.err.count("Traceback") == 1
    first = ended.err.split("Traceback (most recent call last):\n")[1].splitlines()[0]
    assert first == f'  File "{file}", line 3, in <module>'
    assert written(tmp_path) == []


def test_more_trials_than_the_grid_has_points(tmp_path: Path, here: Callable[..., Ended]) -> None:
    arguments = 'epochs=1, trials=3, sampler="grid", grid={"learning_rate": [0.1, 0.2]}'
    file = StudyText(arguments=arguments).write(tmp_path / "grid.py")
    check_refused(here("run", file, cwd=tmp_path), 1, "trials=3, but the grid has 2 points")
    assert written(tmp_path) == []
