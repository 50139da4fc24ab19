"""Whole trials that begin from a file: killed, resumed, verified; and a file that changes."""

import json

import keras
import pytest
from study_files import DIES_ONCE, StudyText
from sweeps import sweep

from sweeper.cli.main import main
from sweeper.errors import DefinitionChangedError, DefinitionError

ARGUMENTS = 'objective="loss", epochs=2, sampler="random", audit="off"'


def base_weights(path, seed=1):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((16,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.save_weights(path)
    return path


def study(directory, warm_start, *, dies=False, trials=2):
    directory.mkdir()
    text = StudyText(
        head=f"from sweeper import WarmStart\n{DIES_ONCE}",
        data="return Data(train=(x[:16], y[:16]), batch_size=8)",
        eager=True,
        callbacks="DiesOnce(trial, 3, kept=2)" if dies else "",
        arguments=f"{ARGUMENTS}, trials={trials}, warm_start={warm_start}",
    )
    return text.write(directory / "small.py")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Where `undisturbed` ran: ``warm`` has a study that begins from ``base.weights.h5``."""
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def undisturbed(ran):
    """The digests of the first trial with the file, and of the first two without."""
    base = base_weights(ran / "base.weights.h5")
    digests = {}
    for how, given, trials in (("warm", f"WarmStart({str(base)!r})", 1), ("cold", "None", 2)):
        file = study(ran / how, given, trials=trials)
        swept = sweep(file, ran / how, workers=1, isolation="inline")
        digests[how] = [t.digest for t in swept.trials]
    return digests


@pytest.mark.whole
def test_a_warm_started_trial_that_is_killed_and_resumed_ends_alike_and_verifies(
    undisturbed, tmp_path, capsys
):
    given, kinds = "lambda trial: None if trial.number else {path!r}", ["warm", "cold"]
    base = base_weights(tmp_path / "base.weights.h5")
    dying = study(tmp_path / "b", given.format(path=str(base)), dies=True, trials=len(kinds))
    runs = tmp_path / "b/runs"
    killed = sweep(dying, runs)
    assert [len(t.attempts) for t in killed.trials] == [2] * len(kinds)
    expected = [undisturbed[kind][number] for number, kind in enumerate(kinds)]
    assert [t.digest for t in killed.trials] == expected
    assert undisturbed["warm"][0] != undisturbed["cold"][0]
    report = killed.trials[0].warm_start
    assert (report["path"], report["kind"], report["of"]) == (str(base), "Keras weights", 2)
    said = [text for text in killed.notices if "begins from" in text]
    assert sum(text.startswith("trial 0:") for text in said) == 1

    in_runs = ("--runs-dir", str(runs))
    verified = main(["verify", "small", "--trial", "0", "--interrupt", *in_runs])
    assert verified == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["show", "small", "0", "--json", *in_runs]) == 0
    assert json.loads(capsys.readouterr().out)["warm_start"] == report

    base_weights(base, seed=2)
    again = main(["verify", "small", "--trial", "0", *in_runs])
    out, err = capsys.readouterr()
    assert again == 4, err
    assert "the file of its warm start has changed" in out + err


@pytest.mark.whole
@pytest.mark.usefixtures("undisturbed")
def test_a_study_is_another_one_once_the_file_that_it_names_is(ran, capsys):
    """The control is above: as long as the file is the same, the trial verifies."""
    words = ["verify", "small", "--trial", "0", "--runs-dir", str(ran / "warm")]
    base_weights(ran / "base.weights.h5", seed=2)
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "the definition of study" in err
    assert "warm_start" in err
    with pytest.raises(DefinitionChangedError, match="warm_start"):
        sweep(ran / "warm/small.py", ran / "warm", trials=3)


def test_a_study_whose_file_is_missing_or_does_not_fit_says_so(tmp_path):
    gone = study(tmp_path / "a", f"WarmStart({str(tmp_path / 'gone.keras')!r})")
    with pytest.raises(DefinitionError, match=r"gone\.keras does not exist"):
        sweep(gone, tmp_path / "a/runs")
    keras.Sequential([keras.Input((16,)), keras.layers.Dense(2)]).save_weights(
        base := tmp_path / "base.weights.h5"
    )
    given = f"WarmStart({str(base)!r})"
    unfit = sweep(study(tmp_path / "b", given), tmp_path / "b/runs", workers=1, isolation="inline")
    assert {t.state for t in unfit.trials} == {"failed"}
    assert "sequential/dense/kernel is float32[16, 1], and float32[16, 2] in it" in str(
        unfit.trials[0].error
    )
