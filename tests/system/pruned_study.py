"""The study of pruned trials, which is to be the same sweep wherever its workers are."""

from dataclasses import replace

from study_files import SHORT


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
