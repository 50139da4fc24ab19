"""Search settings, checked when they are declared: objectives, sampler, pruner, given values.

These are plain values, which the database stores and a resume compares. A pruner is an Optuna
object of the user; its arguments are read from its attributes, so that a change is noticed and a
worker can make an equal one without importing the study.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from sweeper.declarations.arguments import checked_choice, checked_whole
from sweeper.declarations.space import CategoricalChoice
from sweeper.errors import DefinitionError
from sweeper.support.shown import shown_value

Direction = Literal["minimize", "maximize"]

At = Literal["end", "last", "best"]
"""Weights whose objective is a trial's value: at the end of training, or of the last or best epoch."""

NonFinite = Literal["continue", "fail"]
"""Effect on a trial of a loss or an objective that is NaN or infinite after an epoch."""

Duplicates = Literal["reuse", "train", "redraw"]
"""Treatment of a trial with the parameters of an earlier one."""

MOST_REDRAWS = 10
"""Most repeated proposals of the sampler for one trial with ``duplicates="redraw"``."""

SAMPLERS = ("tpe", "random", "grid", "qmc", "cmaes", "gp")
"""The samplers that can be selected by name."""

BLIND_SAMPLERS = ("random", "grid", "qmc")
"""Samplers that use no results."""


_LARGER_IS_BETTER = frozenset(
    {
        *("accuracy", "acc", "auc", "auroc", "auprc", "precision", "recall", "iou", "jaccard"),
        *("dice", "fbeta", "r2", "topk", "specificity", "sensitivity", "similarity"),
        *("correlation", "kappa"),
    }
)
_SMALLER_IS_BETTER = frozenset(
    {
        *("loss", "cost", "error", "err", "mse", "mae", "mape", "msle", "rmse", "rmsle"),
        *("perplexity", "crossentropy", "bce", "divergence", "kld", "hinge", "poisson"),
        *("logcosh", "nll", "deviance", "brier"),
    }
)
"""Words in names of metrics, such as Keras's, that determine the direction."""

_NEUTRAL = frozenset(
    {
        *("score", "rate", "mean", "macro", "micro", "weighted", "average", "roc", "pr", "at"),
        *("coef", "coefficient", "class", "metric", "k"),
    }
)
"""Words that may follow those words and change nothing."""

_NEGATIVE = frozenset({"neg", "negative", "minus", "inverse", "inverted"})
"""Words that reverse a metric, such as ``neg_mean_squared_error`` of scikit-learn."""

_ONE_WORD = (
    (r"cross_entropy", "crossentropy"),
    (r"log_cosh", "logcosh"),
    (r"io_u", "iou"),
    (r"f(_?beta|[0-9]+)", "fbeta"),
    (r"r(2|_?squared?)", "r2"),
    (r"top_?(k|[0-9]+)", "topk"),
)


def cost_sign(direction: str) -> float:
    """Return the factor by which an objective becomes a cost, of which smaller is better."""
    return -1.0 if direction == "maximize" else 1.0


def direction_of(metric: str) -> Direction | None:
    """Return the direction of a metric that its name determines; None if the name does not.

    The last word that has a direction decides, as in English: ``val_accuracy_loss`` is a loss, and
    ``out_accuracy_1`` an accuracy. A word without a meaning here may stand before it, such as an output's
    name, and not after it.
    """
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", metric.partition("[")[0]).lower()
    name = "_".join(re.findall(r"[a-z0-9]+", name))
    for pattern, word in _ONE_WORD:
        name = re.sub(rf"(?<![a-z0-9]){pattern}(?![a-z0-9])", word, name)
    words = name.split("_")
    if not _NEGATIVE.isdisjoint(words):
        return None
    for word in reversed(words):
        stem = word if word == "r2" else word.rstrip("0123456789")
        if stem in _LARGER_IS_BETTER:
            return "maximize"
        if stem in _SMALLER_IS_BETTER:
            return "minimize"
        if stem and stem not in _NEUTRAL:
            return None
    return None


@dataclass(frozen=True, slots=True, init=False)
class Objective:
    """A metric by which trials are compared, and its direction.

    Attributes:
        name: A key of the epoch logs.
        direction: ``"maximize"`` or ``"minimize"``; by default what the name determines.

    Raises:
        DefinitionError: No direction is given, and the name does not determine it.

    Examples:
        >>> sweeper.Objective("val_accuracy").direction
        'maximize'
    """

    name: str
    direction: Direction

    def __init__(self, name: str, direction: Direction | None = None) -> None:
        resolved = direction or direction_of(name)
        if resolved is None:
            raise DefinitionError(
                f"objective={name!r}: this name does not tell whether larger is better; if it is "
                "spelt right, give direction='maximize' or direction='minimize'"
            )
        # The class is frozen.
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "direction", resolved)


def checked_objectives(objective: Any, direction: Any) -> tuple[Objective, ...]:
    """Return the objectives in the user's order; a direction of None is that of the metric's name."""
    several = isinstance(objective, list | tuple)
    names = list(objective) if several else [objective]
    ways = given_directions(objective, direction)
    listed = isinstance(direction, list | tuple)
    msg = None
    if (direction is not None and several != listed) or len(names) != len(ways) or not names:
        msg = (
            f"objective={objective!r} and direction={direction!r}; give one name and one "
            "direction, or two lists of equal length"
        )
    elif not all(isinstance(name, str) and name for name in names):
        msg = f"objective={objective!r}; give the name of a metric, such as 'val_accuracy'"
    elif any(way not in (None, "minimize", "maximize") for way in ways):
        msg = f"direction={direction!r}; it is 'minimize' or 'maximize'"
    elif len(set(names)) != len(names):
        msg = f"objective={objective!r} names a metric twice; leave one out"
    if msg is not None:
        raise DefinitionError(msg)
    return tuple(Objective(name, way) for name, way in zip(names, ways, strict=True))


def given_directions(objective: Any, direction: Any) -> list[Any]:
    """Return the given direction of each objective; None for one that its name determines."""
    if direction is None and isinstance(objective, list | tuple):
        return [None] * len(objective)
    return list(direction) if isinstance(direction, list | tuple) else [direction]


def checked_at(at: Any, objectives: Sequence[Objective]) -> At:
    """Return ``at`` if it is a valid choice; ``"best"`` is refused with several objectives."""
    meaning = (
        "the weights whose objective is a trial's value, at the end, or of the last or best epoch"
    )
    choice: At = checked_choice(at, "at", get_args(At), meaning)
    if at == "best":
        reason = "each objective has a different best epoch; use at='end', or one objective"
        check_one_objective(objectives, "at='best'", reason)
    return choice


def check_one_objective(objectives: Sequence[Objective], given: str, reason: str) -> None:
    """Refuse several objectives beside an argument that takes one."""
    if len(objectives) > 1:
        names = ", ".join(repr(objective.name) for objective in objectives)
        raise DefinitionError(f"{given} with the objectives {names}: {reason}")


def value_at(values: Sequence[float], at: At, direction: Direction) -> float:
    """Return a trial's value: that of its last epoch, or of the best epoch with a finite objective.

    With ``"end"``, for a trial still in training, it is the value of its last finished epoch.
    """
    if at != "best":
        return values[-1]
    finite = [value for value in values if math.isfinite(value)] or values
    return max(finite) if direction == "maximize" else min(finite)


def checked_sampler(sampler: Any) -> str | Callable[[int], Any]:
    """Return ``sampler`` if it is a name of `SAMPLERS` or can be called, and refuse it otherwise."""
    if isinstance(sampler, str):
        if sampler in SAMPLERS:
            return sampler
        raise DefinitionError(
            f"sampler={shown_value(sampler)}; the samplers are {', '.join(map(repr, SAMPLERS))}"
        )
    if callable(sampler):
        return cast("Callable[[int], Any]", sampler)
    raise DefinitionError(
        f"sampler={shown_value(sampler)}; give one of {', '.join(map(repr, SAMPLERS))}, or a function "
        "seed -> optuna sampler (one sampler object would carry its state from trial to trial)"
    )


def checked_grid(grid: Any, sampler: Any) -> Mapping[str, tuple[CategoricalChoice, ...]] | None:
    """Return each parameter's points; None without a grid."""
    if (grid is not None) != (sampler == "grid"):
        msg = f"grid= is given, but sampler={shown_value(sampler)}; use sampler='grid'"
        if grid is None:
            msg = "sampler='grid' needs grid={'parameter': [points, …]}, and got none"
        raise DefinitionError(msg)
    if grid is None:
        return None
    if not isinstance(grid, Mapping) or not grid:
        raise DefinitionError(
            f"grid={shown_value(grid)}; give a mapping of each parameter's name to its points"
        )
    checked: dict[str, tuple[CategoricalChoice, ...]] = {}
    for name, points in grid.items():
        if isinstance(points, str) or not isinstance(points, Sequence) or not points:
            raise DefinitionError(
                f"grid[{name!r}]={shown_value(points)}; give a list of at least one point"
            )
        for point in points:
            check_parameter_value(f"grid[{name!r}] holds", point, "points")
        if len({(type(p), p) for p in points}) != len(points):
            raise DefinitionError(
                f"grid[{name!r}]={shown_value(list(points))} names a point twice; a trial would be run twice"
            )
        checked[str(name)] = tuple(points)
    return checked


def checked_repeats(
    repeats: Any, trials: int, objectives: Sequence[Objective], budget: object = None
) -> int:
    """Return the number of trials of each configuration."""
    checked_whole(repeats, "repeats", least=1)
    if repeats == 1:
        return 1
    check_whole_configurations(trials, repeats)
    reason = (
        "configurations are compared by the mean of one value; give one objective, or leave "
        "repeats out"
    )
    check_one_objective(objectives, f"repeats={repeats}", reason)
    if budget is not None:
        raise DefinitionError(
            f"repeats={repeats} with a budget: rungs compare single trainings; leave one of them "
            "out, or use repeats with a pruner"
        )
    return int(repeats)


def checked_patience(patience: Any, objectives: Sequence[Objective], budget: object) -> int | None:
    """Return the number of configurations without improvement after which a study ends; None for none."""
    if patience is None:
        return None
    check_one_objective(objectives, f"patience={patience!r}", "improvement is of one value")
    if budget is not None:
        raise DefinitionError(
            f"patience={patience!r} with a budget: its rounds need all of their trials; leave one out"
        )
    return int(checked_whole(patience, "patience", least=1))


def check_whole_configurations(trials: int, repeats: int) -> None:
    """Check that a total of trials is a multiple of the repeats; the error names the nearest ones."""
    if trials % repeats == 0:
        return
    near = [n for n in (trials // repeats * repeats, (trials // repeats + 1) * repeats) if n]
    raise DefinitionError(
        f"trials={trials} with repeats={repeats}: trials is the total of trainings, so it must be "
        f"a multiple of repeats; give {' or '.join(map(str, near))}"
    )


def checked_enqueue(
    enqueue: Any, *, trials: int, sampler: Any, repeats: int = 1
) -> tuple[Mapping[str, CategoricalChoice], ...]:
    """Return the given values of the first trials, one mapping for each trial."""
    if enqueue is None:
        return ()
    if not isinstance(enqueue, Sequence) or isinstance(enqueue, str):
        raise DefinitionError(
            f"enqueue={shown_value(enqueue)}; give a list of mappings, such as [{{'learning_rate': 1e-3}}]"
        )
    if enqueue and sampler == "grid":
        raise DefinitionError(
            "enqueue= is given together with sampler='grid', whose values come from grid=; add "
            "points to grid="
        )
    if len(enqueue) * repeats > trials:
        repeated = f" of {repeats} repeats each" if repeats > 1 else ""
        raise DefinitionError(
            f"enqueue= has {len(enqueue)} {'configurations' if repeated else 'trials'}{repeated}, but "
            f"trials={trials}; raise trials, or shorten enqueue="
        )
    checked = []
    for index, values in enumerate(enqueue):
        if not isinstance(values, Mapping) or not all(isinstance(n, str) and n for n in values):
            raise DefinitionError(
                f"enqueue[{index}]={shown_value(values)}; give a mapping of parameters' names to values"
            )
        for name, value in values.items():
            check_parameter_value(f"enqueue[{index}][{name!r}] is", value, "values")
        checked.append(dict(values))
    return tuple(checked)


def describe_pruner(pruner: Any, objectives: Sequence[Objective]) -> Mapping[str, Any] | None:
    """Return the class and arguments of ``pruner`` as plain JSON; None without a pruner.

    ``{"class": "MedianPruner", "n_startup_trials": 5, …}`` for Optuna's own, and
    ``{"class": "custom:<qualified name>", …}`` for another one. Arguments are read from the
    attributes of the same names, with a leading underscore as in Optuna or without.
    """
    if pruner is None:
        return None
    if isinstance(pruner, type) or not callable(getattr(pruner, "prune", None)):
        better = getattr(pruner, "__name__", "optuna.pruners.MedianPruner")
        raise DefinitionError(
            f"pruner={shown_value(pruner)} is not a pruner; give an object, such as {better}()"
        )
    reason = "Optuna prunes by one value; leave pruner out, or compare by one objective"
    check_one_objective(objectives, f"pruner={type(pruner).__name__}", reason)
    return _pruner_parts(pruner)


def _pruner_parts(pruner: Any) -> dict[str, Any]:
    kind = type(pruner)
    of_optuna = kind.__module__.startswith("optuna.pruners.")
    name = kind.__qualname__ if of_optuna else f"custom:{kind.__qualname__}"
    parts: dict[str, Any] = {"class": name}
    for argument in inspect.signature(kind).parameters:
        value = getattr(pruner, f"_{argument}", getattr(pruner, argument, _MISSING))
        if value is None or isinstance(value, bool | int | str):
            parts[argument] = value
        elif isinstance(value, float):
            # Optuna stores an absent bound as an infinity, which JSON has no word for.
            parts[argument] = value if math.isfinite(value) else None
        elif callable(getattr(value, "prune", None)):
            parts[argument] = _pruner_parts(value)
    if (
        kind.__name__ == "SuccessiveHalvingPruner"
        and of_optuna
        and parts.get("min_resource") is None
    ):
        parts["min_resource"] = "auto"
    return parts


_MISSING = object()


def check_parameter_value(where: str, value: Any, what: str) -> None:
    """Check that a value can be a parameter's; ``where`` is the beginning of the error."""
    if not isinstance(value, CategoricalChoice):
        raise DefinitionError(
            f"{where} {shown_value(value)}; {what} are None, bool, int, float or str"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise DefinitionError(f"{where} {shown_value(value)}; {what} must be finite")
