"""A study that is piped into Python runs, and goes on from a file once the change is accepted."""

import contextlib
import subprocess
import sys
from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import LIMIT

from sweeper import load_study

STUDY = replace(
    SHORT,
    name="piped",
    arguments='objective="loss", epochs=1, trials=1',
    tail="""
    if __name__ == "__main__":
        print("the best:", study.run(workers=1).best.value)
    """,
)


@pytest.mark.whole
def test_a_piped_study_says_so_and_goes_on_from_the_accepted_file_it_is_saved_as(tmp_path, here):
    piped = subprocess.run(
        [sys.executable, "-"],
        input=str(STUDY),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert piped.returncode == 0, piped.stderr
    assert "the best:" in piped.stdout
    assert "was typed at a prompt or piped into Python" in piped.stderr

    without = here("verify", "piped", cwd=tmp_path)
    assert without.code != 0
    assert "save the same code as a file" in without.err.lower()

    STUDY.write(tmp_path / "piped_study.py")
    saved = here("run", "piped_study.py", cwd=tmp_path)
    assert saved.code == 1
    assert "was typed at a prompt, piped into Python or edited after its import" in saved.err
    assert "--accept-changes" in saved.err
    accepted = here("run", "piped_study.py", "--accept-changes", cwd=tmp_path)
    assert (accepted.code, "1/1 done" in accepted.out) == (0, True), accepted
    with contextlib.chdir(tmp_path), pytest.warns(UserWarning, match="--accept-changes"):
        model = load_study("piped").trials[0].load_model(accept_changes=True)
    assert model.count_params() == 17
    assert here("run", "piped_study.py", cwd=tmp_path).code == 0, "it is asked for once"
