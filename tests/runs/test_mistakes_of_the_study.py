"""A mistake of the study's, and not of one trial's parameters, ends the run at the first trial."""

from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import sweep, sweep_inline, trials_in

from sweeper.errors import DefinitionError

WELL = replace(
    SHORT, arguments='objective="val_loss", epochs=1, trials=3, sampler="random", audit="off"'
)

# What a graph reports is known before its first step.
ABSENT = {"arguments": WELL.arguments.replace('"val_loss"', '"val_mae"'), "eager": False}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (ABSENT, "the model does not report the objective 'val_mae'"),
        ({"rate": "nothing_of_that_name"}, "NameError: name"),
        # Of a factory that asks for nothing, after another one has asked.
        ({"data": "nothing_of_that_name"}, "NameError: name"),
        ({"data": "return Data(train=(x, y), batchsize=8)"}, "unknown argument 'batchsize'"),
        ({"rate": 'trial.suggest_float("rate", 1.0, 0.1)'}, "low=1.0 is above high=0.1"),
    ],
)
def test_it_ends_the_run_at_the_first_trial_and_a_mended_study_goes_on(tmp_path, changes, text):
    with pytest.raises(DefinitionError, match=text) as raised:
        sweep_inline(replace(WELL, **changes), tmp_path)
    message = str(raised.value)
    assert message.startswith("trial 0 shows that no trial of the study can succeed: ")
    assert "Fix the study and run it again" in message
    assert "sweeper logs" not in message, "an inline trial has none"
    [first_trial] = trials_in(tmp_path / "runs")
    assert first_trial.state == "interrupted"

    if text.startswith("NameError"):
        mended = sweep(WELL.write(tmp_path / "small.py"), tmp_path / "runs", workers=1)
        assert [trial.state for trial in mended.trials] == ["complete"] * 3
        assert [len(trial.attempts) for trial in mended.trials] == [2, 1, 1]


def test_a_trial_in_a_process_has_a_log_to_look_into(tmp_path):
    file = replace(WELL, rate="nothing_of_that_name").write(tmp_path / "small.py")
    with pytest.raises(DefinitionError, match=r"`sweeper logs \S+ 0` has the trial's output"):
        sweep(file, tmp_path / "runs", workers=1)


# A mistake behind a parameter; a range that comes of one; a factory of a later trial alone.
BEHIND = f"{WELL.rate} * 1 if trial.number else len({WELL.rate})"
RANGE = f"trial.suggest_float('other', 0.0 if trial.number else 1.0, {WELL.rate})"
LATER = "well = build_model\nstudy.model = lambda t: None if t.number == 1 else well(t)"


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"rate": BEHIND}, 0),
        # Of a factory that has seen the parameters.
        ({"data": "trial.params; trial.number or len(0)"}, 0),
        pytest.param({"rate": RANGE}, 0, marks=pytest.mark.whole),
        ({"tail": LATER}, 1),
    ],
)
def test_what_may_be_the_trials_own_fails_the_trial_alone(tmp_path, changes, failed):
    swept = sweep_inline(replace(WELL, **changes), tmp_path)
    states = [trial.state for trial in swept.trials]
    assert states == ["failed" if number == failed else "complete" for number in range(3)]
