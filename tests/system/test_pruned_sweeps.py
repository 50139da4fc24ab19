"""Pruned trials: the same ones on any number of workers, killed or not, kept and shown."""

from dataclasses import replace
from pathlib import Path

import pytest
from study_files import SHORT
from sweeps import differing, results_of, sweep, sweep_inline


def pruned_study(trials, startup):
    """Return a study of which the last two trials are drawn, and pruned, by what others gave.

    So few have to be judged by a severe pruner, for some to end.
    """
    return replace(
        SHORT,
        name="pruned",
        keras="",
        head="import optuna",
        model="import keras",
        rate='trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)',
        arguments=f"""objective="val_loss", epochs=4, trials={trials}, concurrency=2, audit="off",
        sampler=lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials={startup}),
        pruner=optuna.pruners.PercentilePruner(10.0, n_startup_trials={startup}), seed=3""",
    )


def prunings(trials):
    """After how many epochs each pruned trial ended, by its number."""
    return {t.number: len(t.epochs) for t in trials if t.state == "pruned"}


STUDY = pruned_study(6, startup=2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The trials of a single worker."""
    trials = sweep_inline(STUDY, tmp_path_factory.mktemp("alone")).trials
    assert 2 <= len(prunings(trials)) <= 4, "the control: some are pruned, and others are not"
    return trials


@pytest.mark.whole
def test_the_later_trials_are_drawn_from_results_and_the_first_are_not(alone, tmp_path):
    """Or the comparisons with this sweep would say nothing about what a sampler sees."""
    by_results = "TPESampler(seed=seed, n_startup_trials=2)"
    assert by_results in STUDY.arguments
    arguments = STUDY.arguments.replace(by_results, "RandomSampler(seed=seed)")
    random = sweep_inline(replace(STUDY, arguments=arguments), tmp_path).trials
    same = [one.params == other.params for one, other in zip(alone, random, strict=True)]
    assert same == [True] * 4 + [False] * 2, "trial n sees those before n - 2, and TPE asks for two"


def test_a_pruned_trials_state_is_kept_and_its_value_is_its_last_epochs(alone):
    for trial in alone:
        if trial.state != "pruned":
            continue
        assert trial.value == trial.epochs[-1].metrics["val_loss"]
        assert len(trial.epochs) < 4, "after the last epoch there is nothing left to prune"
        last = trial.checkpoints[-1]
        assert (last.epoch, last.digest) == (len(trial.epochs), trial.digest)
        assert Path(last.path).is_dir()
        assert [a.outcome for a in trial.attempts] == ["pruned"]
        assert trial.attempts[-1].end_step == last.step == 2 * len(trial.epochs)


KILLING = """
    import optuna
    from sweeper.run.trial import process

    # Kills a pruned trial's process twice: when it knows, and when it is about to tell.
    from sweeper.run.protocol.messages import Judge

    ask, send = process.ChannelLink.ask, process.ChannelLink.send

    def once(moment):
        mark = Path(__file__).with_name(f"{moment}-{NUMBER}")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def asked(self, question):
        answer = ask(self, question)
        if isinstance(question, Judge) and answer.value:
            once("knows")
        return answer

    def sent(self, message):
        if getattr(message, "outcome", None) == "pruned":
            once("tells")
        send(self, message)

    process.ChannelLink.ask, process.ChannelLink.send = asked, sent
    """


@pytest.mark.whole
def test_a_trial_killed_around_the_decision_is_pruned_all_the_same(alone, tmp_path):
    first = min(prunings(alone))
    killing = replace(
        STUDY, head=KILLING, model="import keras\nglobal NUMBER\nNUMBER = trial.number"
    )
    file = killing.write(tmp_path / "killing.py")
    swept = sweep(file, tmp_path / "runs", workers=2, trials=first + 1)
    assert [a.outcome for a in swept.trials[first].attempts] == ["crashed", "crashed", "pruned"]
    assert swept.trials[first].attempts[-1].start_step == 2 * prunings(alone)[first], (
        "the last attempt found the checkpoint of the decision, and asked again"
    )
    assert differing(results_of(swept.trials), results_of(alone[: first + 1])) == []


def test_a_pruner_that_raises_fails_the_trial_with_what_it_raised(tmp_path):
    study = replace(
        SHORT,
        head="""
        import optuna

        class Broken(optuna.pruners.BasePruner):
            def prune(self, study, trial):
                raise LookupError("no table")
        """,
        arguments="""objective="loss", epochs=2, trials=1, sampler="random", threads=1,
        pruner=Broken()""",
    )
    [trial] = sweep_inline(study, tmp_path).trials
    assert trial.state == "failed"
    assert "the pruner raised LookupError: no table, when it was asked about epoch 1" in (
        trial.error or ""
    )
    assert len(trial.epochs) == 1
