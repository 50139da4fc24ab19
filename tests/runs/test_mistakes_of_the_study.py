"""A mistake of the study's, and not of one trial's parameters, ends the run at the first trial."""

from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import sweep, trials_in

from sweeper.errors import DefinitionError

WELL = replace(
    SHORT, arguments='objective="val_loss", epochs=1, trials=3, sampler="random", audit="off"'
)

MISTAKES = {
    "an objective that is misspelt": (
        "'val_loss'",
        WELL.arguments.replace('"val_loss"', '"val_los"'),
        "the model does not report the objective 'val_los'",
    ),
    "a name that is not defined": ("nothing_of_that_name", WELL.arguments, "NameError: name"),
    "an impossible range": (
        'trial.suggest_float("rate", 1.0, 0.1)',
        WELL.arguments,
        "low=1.0 is above high=0.1",
    ),
}


def written(tmp_path, rate, arguments, **more):
    if rate == "'val_loss'":  # what a graph reports is known before its first step
        rate, more = WELL.rate, {"eager": False}
    return replace(WELL, rate=rate, arguments=arguments, **more).write(tmp_path / "small.py")


@pytest.mark.parametrize(("rate", "arguments", "text"), MISTAKES.values(), ids=MISTAKES)
def test_it_ends_the_run_at_the_first_trial_and_a_mended_study_goes_on(
    tmp_path, rate, arguments, text
):
    file = written(tmp_path, rate, arguments)
    with pytest.raises(DefinitionError, match=text) as raised:
        sweep(file, tmp_path, workers=1, isolation="inline")
    said = str(raised.value)
    assert said.startswith("trial 0 shows that no trial of the study can succeed: ")
    assert "Fix the study and run it again" in said
    [begun] = trials_in(tmp_path)
    assert begun.state == "interrupted"

    if "NameError" not in text:
        return
    again = sweep(written(tmp_path, WELL.rate, WELL.arguments), tmp_path, workers=1)
    assert [trial.state for trial in again.trials] == ["complete"] * 3
    assert [len(trial.attempts) for trial in again.trials] == [2, 1, 1]


PARAMETERS = 'trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)'
OF_A_TRIAL = {
    "a mistake behind a parameter": f"{PARAMETERS} * 1 if trial.number else len({PARAMETERS})",
    "a range that comes of a parameter": (
        f"trial.suggest_float('other', 0.05 if trial.number else 1.0, {PARAMETERS})"
    ),
}


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(rate, id=name, marks=[pytest.mark.whole] * ("range" in name))
        for name, rate in OF_A_TRIAL.items()
    ],
)
def test_what_may_be_the_trials_own_fails_the_trial_alone(tmp_path, rate):
    rate = rate.replace("0.05 if", "0.0 if")
    swept = sweep(written(tmp_path, rate, WELL.arguments), tmp_path, workers=1, isolation="inline")
    assert [trial.state for trial in swept.trials] == ["failed", "complete", "complete"]


def test_what_a_later_trial_gets_wrong_is_its_own_where_another_has_a_value(tmp_path):
    tail = "well = build_model\nstudy.model = lambda t: None if t.number == 1 else well(t)"
    file = written(tmp_path, WELL.rate, WELL.arguments, tail=tail)
    swept = sweep(file, tmp_path, workers=1, isolation="inline")
    assert [trial.state for trial in swept.trials] == ["complete", "failed", "complete"]
