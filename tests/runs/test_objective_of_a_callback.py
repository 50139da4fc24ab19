"""A metric that a callback puts into the logs counts as the model's own do."""

from dataclasses import replace

from study_files import SHORT
from sweeps import sweep_inline

REPORTED = replace(
    SHORT,
    head="""
        from optuna.pruners import ThresholdPruner
        from sweeper import Keep

        class Reports(keras.callbacks.Callback):
            "Reports what improves twice and falls; in trial 1 from the beginning too little."

            def __init__(self, trial):
                super().__init__()
                self.low = trial.number == 1

            def on_epoch_end(self, epoch, logs=None):
                value = [0.6, 0.9, 0.7, 0.5][epoch]
                logs["val_roc_auc"] = keras.ops.convert_to_tensor(0.1 if self.low else value)
    """,
    callbacks="""Reports(trial), keras.callbacks.EarlyStopping(
        "val_roc_auc", mode="max", patience=1, restore_best_weights=True)""",
    arguments="""objective="val_roc_auc", epochs=4, trials=2, sampler="random", audit="off",
        pruner=ThresholdPruner(lower=0.3), keep=Keep(last=1, best=1, monitor="val_roc_auc")""",
)


def test_it_is_the_value_and_the_record_and_what_pruners_early_stopping_and_keep_go_by(tmp_path):
    swept = sweep_inline(REPORTED, tmp_path)
    whole, low = swept.trials
    assert [trial.state for trial in swept.trials] == ["complete", "pruned"]
    values = [round(epoch.metrics["val_roc_auc"], 6) for epoch in whole.epochs]
    assert values == [0.6, 0.9, 0.7], "early stopping ended it"
    assert round(whole.value, 6) == 0.9, "of the weights that early stopping restored"
    assert len(low.epochs) == 1
    assert swept.results.best.number == 0, "maximized, by its name"
    assert [checkpoint.epoch for checkpoint in whole.checkpoints] == [2, 3]


def test_the_best_epoch_is_the_best_by_it(tmp_path):
    best = REPORTED.arguments.replace("epochs=4", 'epochs=4, at="best"')
    swept = sweep_inline(replace(REPORTED, arguments=best, callbacks="Reports(trial)"), tmp_path)
    assert [round(trial.value, 6) for trial in swept.trials] == [0.9, 0.1]
    assert swept.trials[0].value_of == "epoch 2"
