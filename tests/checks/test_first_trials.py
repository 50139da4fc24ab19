"""The first trials of a run: what ends it, and what it warns of."""

from dataclasses import replace

import pytest
from corpus import PITFALLS, swept
from short_trials import EAGER
from study_files import SHORT, TWO_STEPS, StudyText
from sweeps import sweep, trials_in

from sweeper.errors import IndependenceError

ONE_EPOCH = 'objective="loss", epochs=1, trials=2, sampler="random", audit="off"'


SLOW = StudyText(
    name="slow",
    head="""
    import time

    HEAD = keras.layers.Dense(1, name="head")

    def slow_data(trial):
        time.sleep(0.4)
        return load_data(trial)
    """,
    model="model = keras.Sequential([keras.Input((16,)), HEAD])\n"
    "model.compile(keras.optimizers.SGD(0.01), 'mse')\nreturn model",
    arguments=ONE_EPOCH,
    tail="study.data = slow_data",
)


def test_the_first_trials_that_share_an_object_end_the_run_and_train_nothing(tmp_path):
    file = SLOW.write(tmp_path / "slow.py")
    with pytest.raises(IndependenceError, match=r"module attribute slow\.HEAD") as raised:
        sweep(file, tmp_path / "runs", workers=2)
    assert raised.value.exit_code == 4
    trials = trials_in(tmp_path / "runs", "slow")
    assert {trial.state for trial in trials} == {"interrupted"}
    assert [trial.epochs for trial in trials] == [()] * len(trials)


def test_a_later_trial_that_would_be_refused_fails_alone(tmp_path):
    text = StudyText(
        name="other",
        head="HEAD = keras.layers.Dense(1, name='head')",
        model="head = HEAD if trial.number else keras.layers.Dense(1)\n"
        "model = keras.Sequential([keras.Input((16,)), head])\n"
        "model.compile(keras.optimizers.SGD(0.01), 'mse', run_eagerly=True)\nreturn model",
        data=TWO_STEPS,
        arguments=ONE_EPOCH,
    )
    _, later = sweep(text.write(tmp_path / "other.py"), tmp_path / "runs", workers=1).trials
    assert [attempt.outcome for attempt in later.attempts] == ["failed"]
    assert later.error == (
        "IndependenceError: layer 'head' is model.layers[0] of this trial and module attribute "
        "other.HEAD; build it inside build_model"
    )


def test_a_factory_that_fails_for_the_first_trial_alone_ends_no_run(tmp_path):
    text = replace(
        SHORT,
        name="first",
        model="if trial.number == 0: raise KeyError('first')",
        arguments=ONE_EPOCH,
    )
    ran = sweep(text.write(tmp_path / "first.py"), tmp_path / "runs")
    assert [trial.state for trial in ran.trials] == ["failed", "complete"]
    assert warned_early(ran) == [], "what is sound is not warned of"


def warned_early(ran):
    """What a run says of its study, beside how its processes start and what it waits for."""
    of_processes = (
        "every trial ",
        "inline trials have the hash",
        "the first trial waits",
        "a worker waits",
        "a trial waits",
    )
    return [message for message in ran.notices if not message.startswith(of_processes)]


@pytest.mark.parametrize(
    "name",
    ["refused/cached_model", pytest.param("undone/objects_of_training", marks=pytest.mark.whole)],
)
def test_what_its_processes_keep_apart_runs_without_a_word(name, tmp_path):
    ran = swept(PITFALLS / f"{name}.py", tmp_path)
    assert [trial.state for trial in ran.trials] == ["complete"] * 2
    assert warned_early(ran) == []


SPLIT = StudyText(
    name="split",
    model=EAGER,
    data="""
    held_out = {how}
    return Data(train=(x[:16], y[:16]), validation=(x[held_out], y[held_out]), batch_size=8)
    """,
    arguments='objective="val_loss", epochs=1, trials=2, sampler="random", audit="off"',
)
VALIDATED = {
    "np.random.permutation(len(x))[:40]": True,
    "np.random.default_rng(trial.seed).permutation(len(x))[:40]": True,
    "np.random.default_rng(0).permutation(len(x))[:40]": False,
    # Another order of the same samples.
    "np.random.permutation(40)": False,
    # A parameter asks for it.
    "slice(int(trial.suggest_float('from', 0, 100)), 120)": False,
}


@pytest.mark.parametrize(
    "split",
    [pytest.param(h, marks=[pytest.mark.whole] * ("default_rng" in h)) for h in VALIDATED],
)
def test_trials_that_are_validated_on_other_samples_are_warned_of_once(split, tmp_path):
    text = replace(SPLIT, data=SPLIT.data.format(how=split))
    file = text.write(tmp_path / "split.py")
    ran = sweep(file, tmp_path / "runs", workers=1, isolation="inline")
    assert [trial.state for trial in ran.trials] == ["complete"] * 2
    warned = warned_early(ran)
    assert len(warned) == VALIDATED[split]
    if warned:
        line = 1 + file.read_text().splitlines().index("def load_data(trial):")
        assert warned[0].startswith(
            f"{file}:{line}: trials are validated on different samples, so their values cannot be "
            "compared: load_data returned different validation data for trials 0 and 1, "
            "without a parameter that asks for it; draw the split from a seed that does not depend on the trial"
        )


SEEDED = StudyText(
    name="seeded",
    data=TWO_STEPS,
    arguments='objective="loss", epochs=1, trials=4, repeats=2, sampler="random", audit="off"',
)
BEGINS = {
    # The lines before the model, the arguments of its layer, and how many notices there are.
    "its own seed": ("keras.utils.set_random_seed(42)", "", 1),
    "an initializer's": ("", ", kernel_initializer=keras.initializers.GlorotUniform(seed=1)", 1),
    "the trial's": ("", "", 0),
    "the trial's again": ("keras.utils.set_random_seed(trial.seed)", "", 0),
}


@pytest.mark.parametrize("case", BEGINS)
def test_repeats_that_begin_with_the_same_weights_are_warned_of_once(case, tmp_path):
    before, options, count = BEGINS[case]
    model = f"""
    {before}
    trial.suggest_float("rate", 0, 1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1{options})])
    model.compile("sgd", "mse", run_eagerly=True)
    return model
    """
    file = replace(SEEDED, model=model).write(tmp_path / "seeded.py")
    ran = sweep(file, tmp_path / "runs", workers=1, isolation="inline")
    assert [trial.state for trial in ran.trials] == ["complete"] * 4
    warned = [notice for notice in ran.notices if "begin with the same weights" in notice]
    assert len(warned) == count
    assert all(f"{file}:" in notice and "build_model sets a seed" in notice for notice in warned)
