"""``init`` writes a file that runs as it is, overwrites nothing, and says what to type next."""

import re

import pytest
from forked_programs import PROGRAM
from sweeps import python

from sweeper import load_study


@pytest.mark.whole
@pytest.mark.parametrize("template", ["arrays", "tf-data", "step"])
def test_a_template_trains_as_its_last_lines_say(call, bare_directory, template):
    """One trial of one epoch, by ``python FILE``: what stands under its guard runs, too."""
    file = bare_directory / f"written_by_{template.replace('-', '_')}.py"
    answer = call("init", str(file), "--template", template)
    assert answer.code == 0, answer.err
    assert load_study(str(file)).name == f"written-by-{template}"
    text = file.read_text()
    assert "{file}" not in text
    assert "{name}" not in text
    file.write_text(re.sub(r"epochs=\d+", "epochs=1", re.sub(r"trials=\d+", "trials=1", text)))
    training = python(*PROGRAM, file, cwd=bare_directory)
    assert training.code == 0, training.err
    [line] = training.out.splitlines()
    assert re.match(rf"trial 0 of written-by-{template} complete, value=[\d.]+, \w+=", line), line
    assert line.endswith(", 1 epoch, 1 attempt")


def test_what_init_says_next_is_a_run_that_ends_well(call, bare_directory):
    answer = call("init")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "study.py holds the study 'first-study'; next:",
        "  sweeper check study.py",
        "  sweeper run study.py",
    ]
    file = bare_directory / "study.py"
    text, short = re.subn(r"\bepochs=\d+", 'audit="off", epochs=1', file.read_text())
    assert short == 1
    file.write_text(text)
    [_, _, line] = answer.out.splitlines()
    ran = call(*line.split()[1:], "--trials", "1", "--workers", "1")
    assert ran.code == 0, ran.err
    status = call("status", "first-study", "--json").json
    assert status["complete"] == 1
    assert len(status["best"]["params"]) == 2
    assert status["best"]["value"] is not None
    assert (bare_directory / "runs" / "first-study").is_dir()


def test_a_file_that_is_there_is_not_overwritten_unless_asked(call, bare_directory):
    (bare_directory / "study.py").write_text("mine\n")
    assert call("init").code == 2
    assert (bare_directory / "study.py").read_text() == "mine\n"
    assert call("init", "--force").code == 0
    assert "Study(" in (bare_directory / "study.py").read_text()


@pytest.mark.parametrize(
    ("file", "name"), [("a b_c.py", "a-b-c"), ("étude.py", "tude"), ("_.py", "first-study")]
)
def test_the_study_is_called_as_its_file(call, file, name):
    assert f"the study {name!r}" in call("init", file).out
