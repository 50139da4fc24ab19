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


def run_inline(directory, warm_start, **changes):
    file = study(directory, warm_start, **changes)
    return sweep(file, directory, workers=1, isolation="inline").trials


@pytest.mark.whole
def test_a_warm_started_trial_that_is_killed_and_resumed_ends_alike_and_verifies(tmp_path, capsys):
    base = base_weights(tmp_path / "base.weights.h5")
    named = f"WarmStart({str(base)!r})"
    [warm] = run_inline(tmp_path / "warm", named, trials=1)
    cold = run_inline(tmp_path / "cold", "None")
    assert warm.digest != cold[0].digest

    factory = f"lambda trial: None if trial.number else {str(base)!r}"
    runs = tmp_path / "b/runs"
    killed = sweep(study(tmp_path / "b", factory, dies=True), runs)
    assert [len(t.attempts) for t in killed.trials] == [2, 2]
    assert [t.digest for t in killed.trials] == [warm.digest, cold[1].digest]
    report = killed.trials[0].warm_start
    assert (report["path"], report["kind"], report["of"]) == (str(base), "Keras weights", 2)
    notices = [text for text in killed.notices if "begins from" in text]
    assert sum(text.startswith("trial 0:") for text in notices) == 1

    in_runs = ("--runs-dir", str(runs))
    verified = main(["verify", "small", "--trial", "0", "--interrupt", *in_runs])
    assert verified == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["show", "small", "0", "--json", *in_runs]) == 0
    assert json.loads(capsys.readouterr().out)["warm_start"] == report

    base_weights(base, seed=2)
    code = main(["verify", "small", "--trial", "0", *in_runs])
    out, err = capsys.readouterr()
    assert code == 4, err
    assert "the file of its warm start has changed" in out + err

    # A study that names the file is another one once the file is.
    assert main(["verify", "small", "--trial", "0", "--runs-dir", str(tmp_path / "warm")]) == 1
    err = capsys.readouterr().err
    assert "the definition of study" in err
    assert "warm_start" in err
    with pytest.raises(DefinitionChangedError, match="warm_start"):
        sweep(tmp_path / "warm/small.py", tmp_path / "warm", trials=3)


def test_a_study_whose_file_is_missing_or_does_not_fit_says_so(tmp_path):
    gone = study(tmp_path / "a", f"WarmStart({str(tmp_path / 'gone.keras')!r})")
    with pytest.raises(DefinitionError, match=r"gone\.keras does not exist"):
        sweep(gone, tmp_path / "a/runs")
    keras.Sequential([keras.Input((16,)), keras.layers.Dense(2)]).save_weights(
        base := tmp_path / "base.weights.h5"
    )
    unfit = run_inline(tmp_path / "b", f"WarmStart({str(base)!r})")
    assert {t.state for t in unfit} == {"failed"}
    message = "sequential/dense/kernel is float32[16, 1], and float32[16, 2] in it"
    assert message in str(unfit[0].error)
