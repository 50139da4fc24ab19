"""Observations: results of trainings outside of a study, which its sampler uses, and the reading of their files.

They are no trials: they have no number, no rank and no files, and count for no total.
"""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.declarations.searching import BLIND_SAMPLERS, Objective, check_parameter_value
from sweeper.declarations.space import CategoricalChoice
from sweeper.errors import DefinitionError
from sweeper.support.shown import shown_value

_PREFIX = "params_"
"""Prefix of parameters' columns in CSV of `sweeper status`, of `StudyResults.to_dataframe` and of Optuna."""


@dataclass(frozen=True, slots=True)
class ForeignObservation:
    """Result of a training outside of the study, for the study's sampler.

    Attributes:
        params: Its parameters, by name.
        values: Its value of each objective, in order.
        since: Number of the first trial whose search uses it, from 0.
        until: Number of the first one that does not use it any more; None for none.
        source: Where it came from: a file, or an Optuna study; None for the study's definition.

    Examples:
        >>> study.status().observations  # of Study(observe=…) and `sweeper observe`
        ()
    """

    params: Mapping[str, CategoricalChoice]
    values: tuple[float, ...]
    since: int = 0
    until: int | None = None
    source: str | None = None

    def is_used_by(self, number: int) -> bool:
        """Return whether the search of this trial uses it."""
        return self.since <= number and (self.until is None or number < self.until)

    def to_json(self) -> dict[str, Any]:
        """Return the observation as ``--json`` prints it."""
        given = {"params": dict(self.params), "values": list(self.values)}
        return {**given, "since": self.since, "until": self.until, "source": self.source}


def observed_text(observations: Sequence[ForeignObservation]) -> str | None:
    """Return how many observations a study has, from where, and for which trials; None for none."""
    if not observations:
        return None
    groups = Counter((o.source, o.since, o.until) for o in observations)
    parts = []
    for (source, since, until), count in groups.items():
        part = f"{count} from {source or 'the definition'}"
        if until is not None:
            part += f", used by trial{'' if until == since + 1 else f's {since} to'} {until - 1}"
        elif since:
            part += f", used from trial {since} on"
        parts.append(part)
    plural = "s" * (len(observations) > 1)
    return f"{len(observations)} observation{plural} for the sampler, no trial{plural}: {'; '.join(parts)}"


def checked_observations(
    entries: Any, objectives: Sequence[Objective], sampler: Any, where: str = "observe"
) -> tuple[ForeignObservation, ...]:
    """Return the observations of mappings with ``params`` and ``value`` or ``values``; ``where`` names them.

    An entry whose ``state`` is not "complete" is left out, so that results of a study can be given as they
    are. Values are in the order of the objectives, or by their names.

    Raises:
        DefinitionError: An entry is no such mapping, a value is missing, of a wrong type or not finite, or
            the sampler uses no results.
    """
    example = "[{'params': {'learning_rate': 1e-3}, 'value': 0.9}]"
    if entries is None:
        return ()
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise DefinitionError(
            f"{where}={shown_value(entries)}; give a list of mappings, such as {example}"
        )
    if entries and sampler in BLIND_SAMPLERS:
        raise DefinitionError(
            f"{where}: sampler={sampler!r} uses no results, so observations would change nothing; leave "
            "them out, or use sampler='tpe'"
        )
    observations = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("params"), Mapping):
            raise DefinitionError(
                f"{where}[{index}]={shown_value(entry)}; give a mapping as in {example}"
            )
        if entry.get("state", "complete") != "complete":
            continue
        params = dict(entry["params"])
        for name, value in params.items():
            check_parameter_value(f"{where}[{index}]['params'][{name!r}] is", value, "values")
        values = _checked_values(entry, objectives, f"{where}[{index}]")
        observations.append(ForeignObservation(params, values))
    return tuple(observations)


def _checked_values(
    entry: Mapping[str, Any], objectives: Sequence[Objective], where: str
) -> tuple[float, ...]:
    names = [objective.name for objective in objectives]
    value = entry.get("value")
    values = entry.get("values")
    if values is None:
        values = [] if value is None else [value]
    if isinstance(values, Mapping):
        values = [values[name] for name in names if name in values]
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(names):
        count = len(values) if isinstance(values, Sequence) else 0
        key = "'value'" if len(names) == 1 else f"'values' with {len(names)} numbers"
        raise DefinitionError(
            f"{where} has {count} values, and the study has {len(names)} "
            f"objective{'s' * (len(names) > 1)} ({', '.join(names)}); give {key}"
        )
    for number in values:
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not math.isfinite(number):
            raise DefinitionError(
                f"{where} has the value {shown_value(number)}; expected a finite number: leave out "
                "a training that has none"
            )
    return tuple(map(float, values))


def read_observations(
    path: Path, objectives: Sequence[Objective], sampler: Any
) -> tuple[ForeignObservation, ...]:
    """Return the observations in a file: JSON as in ``Study(observe=…)``, or CSV with a header.

    A CSV file has a column for each parameter and one for the value, which is called "value" or like the
    objective. CSV of `sweeper status`, of `StudyResults.to_dataframe` and of Optuna's
    ``trials_dataframe`` is read as it is, and so is JSON of `sweeper status`.

    Raises:
        DefinitionError: The file cannot be read, or has another form; see `checked_observations`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            entries = json.loads(text)
            entries = entries.get("trials") if isinstance(entries, Mapping) else entries
        elif path.suffix.lower() == ".csv":
            entries = list(_csv_entries(text, objectives, str(path)))
        else:
            raise DefinitionError(
                f"{path}: the name does not end in .csv or .json, and observations are one of these"
            )
    except OSError as error:
        raise DefinitionError(
            f"{path} cannot be read: {error.strerror or error}; give an existing file"
        ) from None
    except (ValueError, csv.Error) as error:
        raise DefinitionError(
            f"{path} cannot be read: {error}; expected UTF-8 text in JSON or CSV"
        ) from None
    observations = checked_observations(entries or [], objectives, sampler, str(path))
    if not observations:
        raise DefinitionError(f"{path} has no complete result; expected one at least")
    return observations


def _csv_entries(text: str, objectives: Sequence[Objective], path: str) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text))
    header = [name for name in reader.fieldnames or () if name]
    columns = []
    for index, objective in enumerate(objectives):
        names = [objective.name, f"values_{objective.name}", f"values_{index}"]
        names += ["value"] if len(objectives) == 1 else []
        column = next((name for name in names if name in header), None)
        if column is None:
            raise DefinitionError(
                f"{path} has no column for the value of {objective.name!r}; expected one of "
                f"{', '.join(map(repr, names))}, and its columns are {', '.join(map(repr, header))}"
            )
        columns.append(column)
    names = [name for name in header if name.startswith(_PREFIX)]
    is_table = bool(names)
    names = names or [name for name in header if name not in columns]
    for row in reader:
        cells = [row[column] or "" for column in columns]
        state = (row.get("state") or "complete") if is_table else "complete"
        params = {name.removeprefix(_PREFIX): _cell(row[name]) for name in names if row[name]}
        values = [_cell(cell) for cell in cells if cell]
        yield {"params": params, "values": values, "state": state.lower()}


def _cell(text: str) -> int | float | str:
    """Return a number as a number; any other text is compared with a parameter's choices as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
