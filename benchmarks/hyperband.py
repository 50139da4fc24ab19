"""Hyperband against training every trial whole: the best value at equal epochs trained.

Usage: ``python benchmarks/hyperband.py [SEEDS [TRIALS [EPOCHS]]]``; 10, 64 and 27 by default. Random
configurations of learning rate, units, dropout and momentum on the digits that ship with scikit-learn.

Every configuration is trained whole, once, as a study of sweeper's. A promoted trial is the same trial
run whole (`tests/train/test_pausing.py`), so what Hyperband gives, and after how many epochs, follows
from the curves: its rounds and decisions are `sweeper.declarations.budgets`' own. For the first seed the study under
Hyperband is run as well, and must have decided the same. Optuna's ``HyperbandPruner`` is shown the same
curves, trial after trial in one process, as its users run it.

Told are the best values after equal epochs, and the epochs after which training trials whole reaches
Hyperband's best (where it never does, all of them), against those that Hyperband takes in all, which is what
its bound is for, and against those after which it had that best itself.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import keras
import optuna
from digits import load_data
from ratios import Ratio

from sweeper import Hyperband, Study, Trial
from sweeper.declarations.budgets import describe_budget, promoted, rung_schedule
from sweeper.declarations.searching import Objective
from sweeper.records.results import TrialRecord

BOUND = 1 / 3

Curves = Sequence[Sequence[float]]
"""The accuracy after each epoch of each trial."""

Course = list[tuple[int, float]]
"""Epochs trained in all, and the value of the trial that ended whole then."""


def build_model(trial: Trial) -> keras.Model:
    """A multilayer perceptron of one hidden layer."""
    units = trial.suggest_int("units", 8, 256, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.6)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(
        trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
        momentum=trial.suggest_float("momentum", 0.0, 0.99),
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def run(seed: int, trials: int, epochs: int, budget: Hyperband | None) -> tuple[TrialRecord, ...]:
    study = Study(
        name="hyperband",
        model=build_model,
        data=load_data,
        objective="val_accuracy",
        direction="maximize",
        epochs=epochs,
        trials=trials,
        sampler="random",
        seed=seed,
        threads=1,
        audit="off",
        budget=budget,
    )
    with tempfile.TemporaryDirectory() as directory:
        runs = Path(directory)
        results = study.run(
            workers=2,
            storage=f"sqlite:///{runs / 'sweeper.db'}",
            runs_dir=runs,
            listener=lambda _event: None,
        )
    return results.trials


def curves_of(trials: Sequence[TrialRecord], epochs: int) -> Curves:
    """One a trial; of one that failed, the worst there is."""
    found = []
    for trial in trials:
        values = [epoch.metrics["val_accuracy"] for epoch in trial.epochs]
        found.append(values if trial.state == "complete" else [0.0] * epochs)
    return found


def whole_course(curves: Curves) -> Course:
    epochs = len(curves[0])
    return [(epochs * (number + 1), curve[-1]) for number, curve in enumerate(curves)]


def hyperband_course(curves: Curves) -> tuple[Course, list[tuple[int, ...]]]:
    """What sweeper's Hyperband does with these trials on one worker, and whom it promotes."""
    epochs = len(curves[0])
    objectives = (Objective("val_accuracy", "maximize"),)
    described = describe_budget(Hyperband(), epochs=epochs, pruner=None, objectives=objectives)
    schedule = rung_schedule(described, epochs)
    assert schedule is not None
    course, decided, trained = [], [], 0
    for each in dict.fromkeys(schedule.round_of(number) for number in range(len(curves))):
        members = list(range(each.first, each.end(len(curves))))
        before = 0
        for rung in each.rungs:
            trained += (rung - before) * len(members)
            values: dict[int, float | None] = {n: curves[n][rung - 1] for n in members}
            members = list(promoted(values, schedule.factor, "maximize"))
            decided.append(tuple(members))
            before = rung
        for number in members:
            trained += epochs - before
            course.append((trained, curves[number][-1]))
    return course, decided


def optuna_course(curves: Curves, seed: int) -> Course:
    """What Optuna's pruner does with them, trial after trial."""
    epochs = len(curves[0])
    pruner = optuna.pruners.HyperbandPruner(1, epochs, 3)
    sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(
        study_name=f"digits-{seed}", direction="maximize", pruner=pruner, sampler=sampler
    )
    course, trained = [], 0
    for curve in curves:
        trial = study.ask()
        for epoch, value in enumerate(curve):
            trained += 1
            trial.report(value, epoch + 1)
            if epoch + 1 < epochs and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, curve[-1])
            course.append((trained, curve[-1]))
    return course


def best_after(course: Course, epochs: int) -> float:
    return max((value for trained, value in course if trained <= epochs), default=0.0)


def epochs_to(course: Course, value: float, otherwise: int) -> int:
    return next((trained for trained, reached in course if reached >= value), otherwise)


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    seeds, trials, epochs = (*given, *(10, 64, 27)[len(given) :])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ours, reaching, theirs, needed, best = [], [], [], [], []
    for seed in range(seeds):
        curves = curves_of(run(seed, trials, epochs, None), epochs)
        course, decided = hyperband_course(curves)
        if seed == 0:
            records = run(seed, trials, epochs, Hyperband())
            rungs = {
                (rung.decision.first, rung.epochs): tuple(
                    each.number for each in rung.decision.compared if each.promoted
                )
                for record in records
                for rung in record.rungs
                if rung.decision is not None
            }
            assert [rungs[key] for key in sorted(rungs)] == decided, (
                "the curves are not the study's"
            )
        spent = course[-1][0]
        reached = best_after(course, spent)
        whole = whole_course(curves)
        ours.append(float(spent))
        reaching.append(float(epochs_to(course, reached, spent)))
        needed.append(float(epochs_to(whole, reached, trials * epochs)))
        pruned = optuna_course(curves, seed)
        theirs.append(best_after(pruned, spent))
        best.append((reached, best_after(whole, spent), whole[-1][0]))
    median = partial(statistics.median)
    print(f"{trials} random configurations, {epochs} epochs, medians of {seeds} seeds")
    print(
        f"    best after {median(ours):.0f} epochs: Hyperband {median(b[0] for b in best):.4f}, "
        f"Optuna's pruner {median(theirs):.4f}, whole trials {median(b[1] for b in best):.4f}"
    )
    what = "epochs of Hyperband against whole trials, to the same best"
    print(Ratio(what, ours, needed, "epochs", BOUND, at_most=True).line())
    what = "epochs until Hyperband has its best, against whole trials"
    print(Ratio(what, reaching, needed, "epochs").line())


if __name__ == "__main__":
    main()
