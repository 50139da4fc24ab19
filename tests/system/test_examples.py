"""Every example and every study of the checkout runs as its first lines say, and ends well."""

import re
from pathlib import Path

import pytest
from forked_programs import PROGRAM
from sweeps import command, python

STUDIES = Path(__file__).parents[2] / "studies"
SHORTER = {
    "digits_convolutional.py": (r"\bepochs=15\b", "epochs=2"),
    "digits_hyperband.py": (r"\bepochs=27\b", "epochs=9"),
    "digits_repeats.py": (r"\bepochs=12\b", "epochs=2"),
    "rmsprop_two_rates.py": (r"\bepochs=30\b", "epochs=2"),
}
"""The studies that are run here, each with two trials, and what makes them shorter."""

RUN_ELSEWHERE = {
    "checkpoint_choice.py": "tests/api/test_checkpoint_choice.py",
    "digits_learning_rate.py": "docs/how-to/index.md",
    "sequence_vae.py": "tests/system/test_accurately_resuming_a_keras_run.py",
    "two_replicas.py": "tests/system/test_many_replicas.py",
}

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "a_schedule_per_batch.py": "interrupted: the power is gone",
    "compare_learning_rates.py": "best: {'learning_rate': 0.01}",
    "keras_aliasing.py": "model 'sequential' is the model of this trial and module attribute "
    "keras_aliasing.network; build it inside build_model",
    "resume_after_a_kill.py": "equal to the undisturbed one: True",
}


LONG = ("resume_after_a_kill.py", "keras_aliasing.py", "a_schedule_per_batch.py")
"""The first runs the study of compare_learning_rates.py, twice and a half; test_kills shows what it does.
What the second shows of Keras is no promise, and its study is refused in tests/guard."""

FORKED = ("compare_learning_rates.py",)
"""They train for long enough."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=[pytest.mark.whole] * (e.name in LONG), id=e.name) for e in EXAMPLES],
)
def test_an_example_runs(example, tmp_path):
    program = PROGRAM if example.name in FORKED else ()
    answer = python(*program, example, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert SAYS[example.name] in answer.out


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.whole] * (n != "rmsprop_two_rates.py")) for n in SHORTER],
)
def test_a_study_of_the_checkout_trains(name, tmp_path):
    text, count = re.subn(*SHORTER[name], (STUDIES / name).read_text())
    assert count == 1
    (tmp_path / name).write_text(text)
    answer = command("run", name, "--trials", 2, "--workers", 2, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert "2/2 done" in answer.out


def test_every_study_of_the_checkout_is_run_by_a_test():
    assert {path.name for path in STUDIES.glob("*.py")} == {*SHORTER, *RUN_ELSEWHERE}
    for name, place in RUN_ELSEWHERE.items():
        assert Path(name).stem in (STUDIES.parent / place).read_text(), (name, place)
