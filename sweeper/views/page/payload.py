"""Data of the page: the JSON of a study's records, as ``--json`` prints it, and what depends on the place.

A trial is the object of ``show --json`` with its target of epochs, its error and its next commands; the study
is the object of ``status --json`` without the trials. A dashboard keeps the text of each trial, so that a
poll reads, converts and sends only the trials that have changed.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.declarations.observing import observed_text
from sweeper.declarations.space import Categorical, Distribution, IntRange
from sweeper.records.configurations import ConfigurationRecord
from sweeper.records.printing import finite_json, json_fields
from sweeper.records.results import StudyResults, StudyStatus, TrialRecord, leader_text
from sweeper.search.importance import parameter_importances
from sweeper.support.paths import RunPaths
from sweeper.views.tables import codes_lines, difference_text, standing, status_objectives

if TYPE_CHECKING:
    from sweeper.db.repository import Repository
    from sweeper.db.stored_results import Stamps

_LARGEST_NUMBER = 2**53
"""The largest whole number that a browser reads exactly."""

LOG_BYTES = 8192
"""Size of the end of a log on the page."""

_ESTIMATED = 300
"""Number of trials up to which a poll estimates the time left."""

_SETTINGS = (
    *("epochs", "sampler", "pruner", "budget", "repeats", "concurrency", "seed", "at", "step"),
    *("deterministic", "threads", "checkpoint_every", "audit"),
)


@dataclass(frozen=True, slots=True)
class Advice:
    """Next commands for a study and for a trial, exactly as they must be typed."""

    study: Callable[[StudyStatus], Sequence[str]] = lambda _: ()
    trial: Callable[[TrialRecord], Sequence[str]] = lambda _: ()


def trial_json(trial: TrialRecord, commands: Sequence[str] = (), log: str | None = None) -> str:
    """Return the text of a trial."""
    data = trial.to_json() | {
        "seed": str(trial.seed),
        "params": {name: _exact(value) for name, value in trial.params.items()},
        "target": trial.length,
        "ignore_checkpoints_through": trial.ignore_checkpoints_through,
        "error": trial.error,
        "commands": list(commands),
    }
    return _text(data if log is None else data | {"log": log})


def study_json(
    repository: Repository,
    results: StudyResults,
    commands: Sequence[str],
    made_at: datetime,
) -> dict[str, Any]:
    """Return the study's part of the page; ``made_at`` is its time, up to which running attempts have worked.

    The epochs of the results are not needed.
    """
    status = results.status
    name = results.status.study
    row = repository.study(name)
    environments = repository.environments(name)
    observed = observed_text(status.observations)
    definition = {"at": "end", "seed": str(row.seed), **row.definition}
    space: dict[str, Distribution] = {}
    for trial in results.trials:
        # The latest ranges, if they have changed.
        space = {**space, **trial.distributions}
    source = row.source or {}
    accepted = [text for change in repository.definition_changes(name) for text in change.changes]
    identity = {
        "fingerprint of definition and code": row.fingerprint,
        "fingerprint of the code": row.code.digest if row.code else None,
        "file": ":".join(filter(None, (source.get("location"), source.get("name")))),
        **{f"digest of trial {trial.number}": trial.digest for trial in results.pareto},
        **{f"accepted change {number}": text for number, text in enumerate(accepted, 1)},
    }
    return {
        "made_at": made_at.isoformat(),
        "study": {key: value for key, value in status.to_json().items() if key != "trials"}
        | {
            "configurations": _configurations(status.configurations),
            "confirmed": _configurations(status.confirmed),
        },
        "answer": leader_text(status),
        "notices": notices(status, deterministic=row.definition.get("deterministic") is not False),
        "exactness": status.exactness.line,
        "seconds_left": status.seconds_left,
        "settings": {key: _exact(definition[key]) for key in _SETTINGS if key in definition}
        | ({"observations": observed} if observed else {}),
        "space": {name: range_json(distribution) for name, distribution in space.items()},
        "environments": [json_fields(environment) for environment in environments],
        "identity": [[name, value] for name, value in identity.items() if value],
        "commands": list(commands),
    }


def _configurations(configurations: Sequence[ConfigurationRecord]) -> list[dict[str, Any]]:
    return [
        configuration.to_json()
        | {"text": configuration.text, "difference": difference_text(configuration)}
        | {"standing": standing(configuration, leads=configuration is configurations[0])}
        for configuration in configurations
    ]


def importances(results: StudyResults) -> dict[str, Any] | None:
    """Return the importances of parameters for the (first) objective; None with too few trials."""
    objective = status_objectives(results.status)[0]
    shares = parameter_importances(results.trials, objective)
    if not shares:
        return None
    named = {"objective": objective.name, "trials": results.status.complete}
    return named | {"shares": [list(share) for share in shares]}


def notices(status: StudyStatus, *, deterministic: bool) -> list[str]:
    """Return the warnings above the numbers."""
    warnings = []
    if status.exactness.warning is not None:
        warnings.append(f"{status.exactness.warning[0].upper()}{status.exactness.warning[1:]}.")
    if not deterministic:
        warnings.append(
            "The study has deterministic=False: a repeated or resumed trial may give other bits."
        )
    if len(status.codes) > 1:
        title, *groups = map(str, codes_lines(status))
        warnings.append(f"{title.capitalize()} {'; '.join(map(str.strip, groups))}.")
    return warnings


def range_json(distribution: Distribution) -> dict[str, Any]:
    """Return a parameter's distribution for the page."""
    if isinstance(distribution, Categorical):
        return {"kind": "choice", "choices": [_exact(choice) for choice in distribution.choices]}
    whole = isinstance(distribution, IntRange)
    return {"kind": "number", "whole": whole, **json_fields(distribution, "low", "high", "log")}


def log_tail(runs_dir: Path | None, trial: TrialRecord, most: int = LOG_BYTES) -> str:
    """Return the end of the log of a trial's newest attempt; empty if this machine has none."""
    if runs_dir is None or not trial.attempts:
        return ""
    path = RunPaths(runs_dir, trial.study).log(trial.number, trial.attempts[-1].number)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        # The trial ran on another machine, or inline.
        return ""
    return text if size <= most else text.partition("\n")[2]


def joined(study: Mapping[str, Any], trials: Iterable[str]) -> str:
    """Return the page's data: the study's part with the texts of trials."""
    return f'{_text(study)[:-1]},"trials":[{",".join(trials)}]}}'


def _text(value: Mapping[str, Any] | Sequence[Any]) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        # NaN and infinities are rare, and replacing them copies the whole value.
        return json.dumps(finite_json(value), allow_nan=False, separators=(",", ":"))


def _exact(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_NUMBER:
        return str(value)
    return value


@dataclass
class _PolledStudy:
    """State of a study between two polls."""

    # Prefix of its versions, another one after a restart of the dashboard or of the study.
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    version: int = 0
    # Of the latest read.
    stamps: Stamps | None = None
    # Text of each trial, and the version of its latest change.
    trials: dict[int, tuple[int, str]] = field(default_factory=dict)
    slim: dict[int, TrialRecord] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)
    # Number of complete trials of the latest importances of parameters.
    ranked: int = 0
    importance: dict[str, Any] | None = None

    def follows(self, stamps: Stamps) -> bool:
        """Return whether the study is the same and has lost no trial since the last read."""
        previous = self.stamps
        return previous is None or (
            previous.identity == stamps.identity and previous.trials.keys() <= stamps.trials.keys()
        )


class LivePayloads:
    """Data of the pages of a dashboard, of which an answer has only the changes; safe for threads.

    Importances of parameters are computed again once there are a tenth more complete trials.
    """

    def __init__(self, advice: Advice) -> None:
        self._advice = advice
        self._studies: dict[str, _PolledStudy] = {}
        self._lock = threading.Lock()

    def answer(
        self, repository: Repository, name: str, since: str, more: Mapping[str, Any]
    ) -> tuple[str, str | None]:
        """Return the present version, and the data that a page of the version ``since`` lacks.

        The data are None if it lacks nothing. ``more`` is added to the study's part.
        """
        # The server answers each poll in a separate thread, and they share what was read.
        with self._lock:
            state = self._read(repository, name)
            version = f"{state.token}-{state.version}"
            if since == version:
                return version, None
            token, _, number = since.partition("-")
            page_version = int(number) if token == state.token and number.isdecimal() else -1
            changed = [text for latest, text in state.trials.values() if latest > page_version]
            head = {**state.study, **more, "importance": state.importance}
            head |= {"version": version, "all": page_version < 0}
            return version, joined(head, changed)

    def _read(self, repository: Repository, name: str) -> _PolledStudy:
        stamps = repository.stamps(name)
        state = self._studies.setdefault(name, _PolledStudy())
        if state.stamps == stamps:
            return state
        if not state.follows(stamps):
            # A new token makes every open page load all trials again.
            state = self._studies[name] = _PolledStudy()
        previous = state.stamps
        changed = None
        if previous is not None:
            changed = [n for n, stamp in stamps.trials.items() if previous.trials.get(n) != stamp]
        state.version += 1
        for trial in repository.trials(name, changed):
            text = trial_json(trial, self._advice.trial(trial))
            state.trials[trial.number] = state.version, text
            state.slim[trial.number] = replace(trial, epochs=())
        # The time left and the configurations need the progress of each trial, and nothing else does.
        needs_progress = stamps.is_repeated or len(stamps.trials) <= _ESTIMATED
        if needs_progress or previous is None or previous.but_progress != stamps.but_progress:
            results = StudyResults(repository.status(name), tuple(state.slim.values()))
            commands = self._advice.study(results.status)
            state.study = study_json(repository, results, commands, datetime.now(UTC))
            if results.status.complete > 1.1 * state.ranked:
                # They take a tenth of a second, which not every poll may.
                state.importance = importances(results)
                state.ranked = results.status.complete
        state.study["made_at"] = datetime.now(UTC).isoformat()
        # Last, so that a read that failed is repeated at the next poll.
        state.stamps = stamps
        return state
