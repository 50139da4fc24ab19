"""The direction of an objective is that of its metric's name, or is asked for."""

import inspect

import keras
import pytest

from sweeper import Keep, Study
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.declarations.searching import Objective, direction_of
from sweeper.errors import DefinitionError

ARGUMENTS = (
    {},
    {"num_classes": 2},
    {"num_classes": 2, "target_class_ids": [0]},
    *({name: 0.5} for name in ("recall", "precision", "sensitivity", "specificity")),
)


def keras_metrics():
    """Yield each metric of Keras that has a direction, and that direction."""
    ways = {"up": "maximize", "down": "minimize"}
    for kind in vars(keras.metrics).values():
        for arguments in ARGUMENTS if inspect.isclass(kind) else ():
            try:
                metric = kind(**arguments)
            except (TypeError, ValueError, NotImplementedError):
                continue
            if hasattr(metric, "_direction"):
                yield metric.name, ways[metric._direction]
            break


def test_the_name_of_every_metric_of_keras_says_what_keras_says_of_its_direction():
    metrics = dict(keras_metrics())
    assert len(metrics) >= 34
    for name, way in metrics.items():
        for spelling in (name, f"val_{name}", f"val_out_1_{name}", f"{name}_2", f"{name}[1]"):
            assert direction_of(spelling) == way, spelling


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *[(name, "maximize") for name in ("acc", "val_acc", "AUC", "val_roc_auc", "ROC-AUC", "F1")],
        *[(name, "maximize") for name in ("f1_macro", "F1Score", "MeanIoU", "top5", "top_k")],
        *[(name, "maximize") for name in ("dice_coef", "precision_at_recall_0.5", "r_squared")],
        *[(name, "maximize") for name in ("out_loss_accuracy", "R2", "recall_at_5", "auc_pr")],
        *[(name, "minimize") for name in ("loss", "val_kl_loss", "mse", "RMSE", "valLoss", "bce")],
        *[(name, "minimize") for name in ("accuracy_loss", "top5_error", "error_rate", "err")],
        *[(name, "minimize") for name in ("perplexity", "cross_entropy", "brier_score")],
        *[(name, None) for name in ("gain", "score", "learning_rate", "f", "f_1", "r_2", "", "1")],
        *[(name, None) for name in ("neg_mean_squared_error", "accuracy_drop", "loss_ratio")],
        *[(name, None) for name in ("true_positives", "entropy", "map", "inaccuracy", "top")],
    ],
)
def test_the_last_word_with_a_direction_decides_and_a_word_after_it_is_asked_about(name, way):
    assert direction_of(name) == way


def study(**arguments):
    factories = {"model": lambda trial: None, "data": lambda trial: None}
    return Study(name="named", epochs=1, trials=1, **factories, **arguments)


@pytest.mark.parametrize(
    ("arguments", "ways", "named"),
    [
        ({}, ["minimize"], ("val_loss",)),
        ({"objective": "val_accuracy"}, ["maximize"], ("val_accuracy",)),
        ({"objective": "val_accuracy", "direction": "minimize"}, ["minimize"], ()),
        ({"objective": ["auc_1", "loss"]}, ["maximize", "minimize"], ("auc_1", "loss")),
        (
            {"objective": ["gain", "loss"], "direction": ["maximize", None]},
            *(["maximize", "minimize"], ("loss",)),
        ),
    ],
)
def test_a_study_stores_the_direction_of_the_name_where_none_is_given(arguments, ways, named):
    implicit = study(**arguments)
    assert [objective.direction for objective in implicit.settings().objectives] == ways
    assert implicit.directed_by_name == named
    settings = implicit.settings().to_json()
    explicit = study(**{**arguments, "direction": ways if len(ways) > 1 else ways[0]})
    assert explicit.settings().to_json() == settings


@pytest.mark.parametrize("objective", ["gain", ["val_loss", "gain"]])
def test_a_name_without_a_direction_is_asked_about_when_the_study_is_defined(objective):
    with pytest.raises(DefinitionError, match=r"objective='gain': .*give direction='maximize' or"):
        study(objective=objective)
    with pytest.raises(DefinitionError, match="give direction='maximize'"):
        Objective("gain")


def test_the_rules_for_checkpoints_take_the_direction_of_each_metrics_name():
    history = [{"accuracy": 0.5, "loss": 3.0}, {"accuracy": 0.9, "loss": 1.0}, {"accuracy": 0.7}]
    checkpoints = [
        KeptCheckpoint(n, n, f"step-{n}", metrics) for n, metrics in enumerate(history, 1)
    ]
    for monitor, mode, gone in (
        ("accuracy", None, {1}),
        ("accuracy", "min", {2}),
        ("loss", None, {1}),
    ):
        rules = Keep(last=1, best=1, monitor=monitor, mode=mode)
        assert {checkpoint.step for checkpoint in rules.select(checkpoints)} == gone
