"""A misspelt name in ``enqueue=`` is an error, and one of another branch is a notice."""

from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import database_url, sweep, sweep_inline

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DefinitionError

HEAD = """
    NAMES = ["depth", "width", "width", "width"]

    def momentum(trial):
        return trial.suggest_float("momentum", 0.0, 0.9)

    def branch(trial):
        kind = trial.suggest_categorical("kind", ["plain", "heavy"])
        trial.suggest_int(NAMES[trial.number], 1, 9)
        units = [trial.suggest_int(f"units_{n}", 1, 9) for n in range(kind == "heavy")]
        return momentum(trial) if kind == "heavy" else sum(units)
"""
RATE = 'trial.suggest_float("learning_rate", 1e-3, 1e-1) + 0 * branch(trial)'


def study(*enqueue, trials=1):
    arguments = f'objective="loss", epochs=1, trials={trials}, sampler="random", audit="off", '
    enqueued = f"enqueue={[*enqueue]!r}, failing_alike=0"
    return replace(SHORT, head=HEAD, rate=RATE, arguments=arguments + enqueued)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "learning_rat",
            "did you mean 'learning_rate'? The trial drew 'learning_rate', 'depth' instead",
        ),
        ("lr", "gives 'lr', which no factory suggests. The trial drew 'learning_rate', 'depth'"),
    ],
)
def test_a_misspelt_name_ends_the_run_and_the_right_one_gives_its_value(tmp_path, name, message):
    enqueued = {name: 0.01, "kind": "plain"}
    with pytest.raises(DefinitionError) as raised:
        sweep_inline(study(enqueued), tmp_path)
    assert "ParameterError: enqueue[0] gives" in str(raised.value)
    assert message in str(raised.value)
    mended = study({"learning_rate": 0.01, "kind": "plain"}).write(tmp_path / "small.py")
    [trial] = sweep(mended, tmp_path / "runs", workers=1).trials
    assert (trial.state, trial.params["learning_rate"]) == ("complete", 0.01)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "plain", "momentum": 0.5},
        {"kind": "plain", "units_3": 4},
        {"kind": "plain", "learning_rate": 0.01, "depth": 1, "width": 4},
    ],
    ids=[
        "in the code of another branch",
        "numbered there",
        "so that nothing was drawn in its place",
    ],
)
def test_a_name_of_another_branch_is_a_notice(tmp_path, values):
    swept = sweep_inline(study(values), tmp_path)
    assert [trial.state for trial in swept.trials] == ["complete"]
    assert any("which trial 0 did not suggest" in text for text in swept.notices)


def test_a_name_that_another_trial_suggested_is_a_notice_and_a_misspelt_one_fails_its_trial_alone(
    tmp_path,
):
    plain = {"kind": "plain"}
    enqueued = [plain, {**plain, "depth": 5}, {**plain, "momentun": 0.1}]
    swept = sweep_inline(study(*enqueued, trials=4), tmp_path)
    assert [trial.state for trial in swept.trials] == ["complete"] * 2 + ["failed", "complete"]
    assert any("'depth', which trial 1 did not suggest" in text for text in swept.notices)
    assert "enqueue[2] gives 'momentun', which no factory suggests." in swept.trials[2].error


def test_a_trial_that_has_drawn_its_parameters_keeps_them_and_says_so(tmp_path):
    """As after a retry of a trial that failed by a misspelt name."""
    plain = {"kind": "plain"}
    misspelt = study(plain, {**plain, "lr": 0.01}, trials=2).write(tmp_path / "small.py")
    failed = sweep(misspelt, tmp_path / "runs", workers=1).trials[1]
    assert failed.state == "failed"
    with Database.open(database_url(tmp_path / "runs"), create=False) as database:
        Repository(database).retry("small", 1)
    mended = study(plain, {**plain, "learning_rate": 0.01}, trials=2)
    swept = sweep(mended.write(tmp_path / "small.py"), tmp_path / "runs", workers=1)
    assert swept.trials[1].params == failed.params
    message = "trial 1 keeps 'learning_rate' of an earlier attempt, and not of enqueue[1]"
    assert any(message in text for text in swept.notices)
