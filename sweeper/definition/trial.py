"""`Trial`: the argument of a study's factories, with parameters, number, seed and directory."""

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from sweeper.declarations.space import (
    Categorical,
    CategoricalChoice,
    Distribution,
    FloatRange,
    IntRange,
)
from sweeper.errors import ParameterError, UncapturableError

_Choice = TypeVar("_Choice", bound=CategoricalChoice)
_Tracked = TypeVar("_Tracked")
_Output = TypeVar("_Output")


class Trial:
    """One trial, as its factories see it. The ``suggest_*`` methods have Optuna's signatures.

    Sweeper makes it for each attempt.

    Args:
        ask: Function that returns a parameter's value for its name and distribution.

    Attributes:
        number: The trial's number in its study, from 0.
        seed: The trial's own seed (an int below 2**32), for code that wants one; Python's, NumPy's,
            TensorFlow's and Keras's generators are already seeded from it.
        reads_number: Whether the factories have read ``number``, so that their parts may depend on it; for
            sweeper's own use.
        directory: Directory for files of the trial's code, the same for every attempt.
        repeat: The number of this training of its configuration, from 0; 0 in a study without
            ``repeats``. A cross-validation reads its split with it: ``splits[trial.repeat]``.

        run_id: A name for the trial's run in an experiment tracker: the same for every attempt, and
            different for every other trial of every study. None in a replay, as of `sweeper check`, which
            is to be in no tracker.

    Examples:
        >>> def build_model(trial):
        ...     units = trial.suggest_int("units", 16, 128, log=True)
        ...     rate = trial.suggest_float("rate", 1e-4, 1e-2, log=True)
        ...     return units, rate, trial.seed
    """

    def __init__(
        self,
        *,
        number: int,
        seed: int,
        directory: Path,
        ask: Callable[[str, Distribution], CategoricalChoice],
        repeat: int = 0,
        run_id: str | None = None,
    ) -> None:
        self._number = number
        self.reads_number = False
        self.run_id = run_id
        self.repeat = repeat
        self.seed = seed
        self.directory = directory
        self._ask = ask
        self._asked: dict[str, tuple[Distribution, CategoricalChoice]] = {}
        self._asks = 0
        self._tracked: dict[str, object] = {}
        self._output: list[object] = []

    @property
    def number(self) -> int:
        """Return the trial's number in its study, from 0."""
        self.reads_number = True
        return self._number

    @property
    def params(self) -> Mapping[str, CategoricalChoice]:
        """Return the parameters requested so far."""
        self._asks += 1
        return MappingProxyType({name: value for name, (_, value) in self._asked.items()})

    @property
    def asks(self) -> int:
        """Return how often the factories have requested parameters, for sweeper's own use."""
        return self._asks

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a float from ``low`` to ``high``, both included.

        Args:
            name: Of the parameter; requested again in the same trial, it has the same value.
            low: The least value.
            high: The greatest value.
            step: Only ``low`` and whole multiples of ``step`` above it; None, the default, for any
                value. Not together with ``log``.
            log: Whether values are drawn evenly by their logarithms; False by default.

        Raises:
            ParameterError: The range is impossible, or ``name`` was requested with another one.
        """
        distribution = FloatRange(float(low), float(high), log=log, step=step)
        return float(cast("float", self._suggest(name, distribution)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return an integer from ``low`` to ``high``, both included.

        Args:
            name: Of the parameter; requested again in the same trial, it has the same value.
            low: The least value.
            high: The greatest value.
            step: Only ``low`` and whole multiples of ``step`` above it; 1 by default.
            log: Whether values are drawn evenly by their logarithms; False by default. Not
                together with a ``step`` above 1.

        Raises:
            ParameterError: The range is impossible, or ``name`` was requested with another one.
        """
        try:
            whole = tuple(operator.index(number) for number in (low, high, step))
        except TypeError:
            raise ParameterError(
                f"suggest_int({name!r}): low={low!r}, high={high!r} and step={step!r} must be "
                "whole numbers; for other numbers use suggest_float"
            ) from None
        distribution = IntRange(whole[0], whole[1], log=log, step=whole[2])
        return int(cast("int", self._suggest(name, distribution)))

    def suggest_categorical(self, name: str, choices: Sequence[_Choice]) -> _Choice:
        """Suggest one of ``choices``.

        Args:
            name: Of the parameter; requested again in the same trial, it has the same value.
            choices: What to choose from: None, booleans, numbers and strings, at least one.

        Raises:
            ParameterError: No choices, one that cannot be stored, or ``name`` was requested with
                others.
        """
        return cast("_Choice", self._suggest(name, Categorical(tuple(choices))))

    @property
    def tracked(self) -> Mapping[str, object]:
        """Return the objects that `track` registered so far."""
        return MappingProxyType(self._tracked)

    def track(self, name: str, trackable: _Tracked) -> _Tracked:
        """Register an object outside of the model to be saved and restored.

        Args:
            name: Its name in checkpoints.
            trackable: A ``tf.Variable``, ``tf.random.Generator`` or ``tf.Module``, a Keras
                variable, layer, optimizer, metric or SeedGenerator, a NumPy generator, or an object
                with ``get_state()`` and ``set_state(state)``.

        Returns:
            ``trackable``, so that it can be used at once.

        Raises:
            UncapturableError: It is none of these, or ``name`` belongs to another object.
        """
        from sweeper.train.state.callbacks import check_trackable

        check_trackable(name, trackable)
        if self._tracked.setdefault(name, trackable) is not trackable:
            raise UncapturableError(
                f"track({name!r}, …) was called for two objects; give the second another name"
            )
        return trackable

    @property
    def output(self) -> Sequence[object]:
        """Return the objects that `output_only` has exempted; the list grows during training."""
        return self._output

    def output_only(self, obj: _Output) -> _Output:
        """Exempt an object that only writes output, such as a progress bar or log file, from capture.

        It is neither inspected, captured nor restored: a resumed trial has a new object from the
        study's code. So training must not depend on it. The kinds of exempted objects are stored
        with the attempt and shown by `sweeper show`. The methods of an exempted callback draw no
        random numbers of the trial's.

        Args:
            obj: Any object, also one that is made during training.

        Returns:
            ``obj``, so that it can be used at once.
        """
        if not any(exempted is obj for exempted in self._output):
            self._output.append(obj)
        return obj

    def _suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        if not isinstance(name, str) or not name:
            raise ParameterError(
                f"a parameter's name must be a string of at least one character, not {name!r}"
            )
        _check_text(f"the parameter's name {name!r}", name)
        if "\0" in name:
            raise ParameterError(
                f"the parameter's name {name!r} contains a NUL, which PostgreSQL cannot store; "
                "remove it"
            )
        if isinstance(distribution, Categorical):
            for choice in distribution.choices:
                _check_text(f"parameter {name!r}: the choice {choice!r}", choice)
        self._asks += 1
        if name in self._asked:
            earlier, value = self._asked[name]
            if earlier != distribution:
                raise ParameterError(
                    f"parameter {name!r} was suggested as {earlier} and now as {distribution}; give "
                    "the second another name"
                )
            return value
        value = self._ask(name, distribution)
        self._asked[name] = (distribution, value)
        return value


def _check_text(what: str, text: object) -> None:
    if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
        raise ParameterError(
            f"{what} contains a lone surrogate (as os.fsdecode returns for bytes that are not "
            "UTF-8), which can be neither stored nor printed; use plain text"
        )
