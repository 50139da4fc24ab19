"""What people read: commands, results and progress print exactly what ``printed.txt`` has, to be read as a list.

Studies and events are made here; where a width is given, a terminal of that size is looked at.
"""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_studies import NASTY, attempt, made, trial_record
from terminals import OPENED, Watched, with_trials

from sweeper.checks.check import CheckReport, Estimate
from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import Objective
from sweeper.records.configurations import configurations_of
from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    CheckpointMeasured,
    ChecksOpened,
    Doing,
    EpochFinished,
    Notice,
    Remark,
    RungDecided,
    RunStopping,
    StepsDone,
    StudyCounted,
    TrainingStarted,
    TrialVerified,
)
from sweeper.records.findings import Finding, Line
from sweeper.records.results import (
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    ParetoTrial,
)

ENTRY = re.compile(r"^\$ ((?:[A-Z]+=\w+ )*)(.+?)(?: -> (\d))?\n((?:    .*\n|\n)+)", re.MULTILINE)
LIST = Path(__file__).with_name("printed.txt").read_text(encoding="utf-8")
PRINTED = ENTRY.findall(LIST)

NAN = "Traceback\nNonFiniteError: the loss is nan"
MISTAKE = "Traceback\nValueError: no such [bold] layer"
LONG = [f"block_{n}_regularization_strength" for n in range(9)]
HEADS = [f"val_{kind}_of_the_{head}_head" for kind in ("accuracy", "loss") for head in "abcd"]
TWO = (Objective("accuracy", "maximize"), Objective("speed", "maximize"))
TEXTS = {"a": 0.1, "b": True, "c": None, "d": "x", "e": "", "f": "x y", "g": "x\ny", "h": 3}


def trials(*values, repeats=1, **changes):
    """Trials with these values, as many of each rate as there are repeats."""
    return [
        trial_record(n, value=value, params={"rate": n // repeats / 10}, **changes)
        for n, value in enumerate(values)
    ]


def epochs(*metrics):
    return tuple(EpochRecord(n, values) for n, values in enumerate(metrics))


def front(*pairs):
    """A study of two objectives, of which the second trial is dominated."""
    records = [
        trial_record(n, value=a, values={"accuracy": a, "speed": b}, params={"x": n})
        for n, (a, b) in enumerate(pairs)
    ]
    pareto = tuple(ParetoTrial(t.number, t.values, t.params) for t in (records[0], records[2]))
    running = trial_record(
        3, state="running", params={"x": 3}, epochs=epochs({"accuracy": 0.375, "speed": 2.25})
    )
    return made("front", *records, running, objectives=TWO, pareto=pareto, best=None)


def repeated(name, repeating, records, **fields):
    configurations = configurations_of(records, "maximize", repeating)
    return made(name, *records, configurations=configurations, **fields)


def confirmed():
    """Of the confirmation, an interval without 0 is explained where the verdict needs more."""
    values = [0.5, 0.6, 0.5, 0.62, 0.61, 0.64, 0.5, 0.62]
    confirm = {"configurations": [0, 1], "repeats": 4, "at_most": 20}
    configurations = configurations_of(trials(*values), "maximize", {"confirm": confirm})
    return made("confirmed", *trials(0.9, 0.8), confirmed=configurations)


def failed(name, *errors, state="failed"):
    records = [trial_record(n, state=state, error=error) for n, error in enumerate(errors)]
    return made(name, *records)


DURATIONS = (-0.5, 0.0423, 1.23, 9.99, 59.4, 59.6, 3599.0, 3600.0, 90000.0)
STUDIES = [
    made("digits", trial_record(0), trial_record(1)),
    made(
        "ranked",
        *trials(float("nan"), 0.5, 0.1, 0.5),
        trial_record(4, state="failed", error=MISTAKE),
        trial_record(5, state="pruned", value=0.9),
    ),
    made("smallest", *trials(0.2, 0.1, 0.3), direction="minimize"),
    made(
        "working",
        trial_record(0, params={"rate": 0.1}),
        trial_record(
            7,
            state="running",
            params={"rate": 0.25},
            epochs=epochs({"loss": 9.75}, {"loss": 9.5, "val_accuracy": 0.875}),
        ),
        target=4,
        seconds_left=200.0,
    ),
    front((0.1, 0.9), (0.05, 0.05), (0.9, 0.1)),
    made(
        "wide",
        *(trial_record(n, params=dict.fromkeys(LONG, 0.123456 * (n + 1))) for n in range(2)),
    ),
    repeated("repeated", {"repeats": 3}, trials(0.9, 0.92, 0.91, 0.5, 0.4, 0.3, repeats=3)),
    made("close", *trials(0.9, 0.83, 0.5)),
    made("apart", *trials(0.9, 0.7, 0.5)),
    confirmed(),
    made("names", trial_record(0, params={"trial": 1, "value": "[i]", "[b]": 2, **TEXTS})),
    made("a-study-with-" + "x" * 80, *trials(0.123456), paused=2),
    made("waiting", target=4),
    failed("nan", NAN, NAN),
    failed("mixed", NAN, MISTAKE),
    failed("once", MISTAKE),
    failed("alike", MISTAKE, MISTAKE),
    failed("mistaken", "ObjectiveError: no 'val_acuracy'", state="interrupted"),
    failed("full", "CheckpointError: the disk is full", state="interrupted"),
    made(
        "shown",
        trial_record(
            0,
            params=TEXTS,
            output_only=("tqdm.std.tqdm",),
            epochs=epochs({"loss": 0.75}, {"loss": 0.5}),
            attempts=tuple(
                attempt(n, "crashed", seconds=duration, error=f"Traceback\nKilled: {n}\n")
                for n, duration in enumerate(DURATIONS, 1)
            ),
            checkpoints=tuple(
                CheckpointRecord(45 * n, n, "c" * 32, size, "runs/x")
                for n, size in enumerate((0, 1023, 1536, 3 << 40), 1)
            ),
        ),
        objective="loss",
    ),
    made(
        "heads",
        trial_record(0, epochs=epochs(dict.fromkeys(HEADS, 0.123456))),
        objective=HEADS[-1],
    ),
    made(
        "compared",
        trial_record(0, params={"rate": 0.125, "layers": 3, "a": 1, "b": None}),
        trial_record(1, params={"rate": 0.25, "layers": 3, "a": True}),
        *(
            trial_record(
                n,
                params={"optimizer": "a-rather-long-choice-of-an-optimizer"},
                epochs=epochs({"loss": float("nan")}),
            )
            for n in range(2, 7)
        ),
    ),
    made("many", *trials(*(n / 100 for n in range(25)), epochs=epochs(*[{"loss": 1.0}] * 40))),
    made("nasty", trial_record(0, params={NASTY: NASTY, "units": 3, "momentum": 0.5})),
]
"""By name, what commands are asked for."""


def running(*numbers, attempt=1, params=None, epochs=10):
    """The events of trials that begin to train."""
    for number in numbers:
        point = {"lr": number / 10} if params is None else params
        yield AttemptStarted(number, attempt)
        yield TrainingStarted(number, point, epochs, 100, 0)


def ended(number, value=None, outcome="complete"):
    return AttemptEnded(number, 1, outcome, value)


def opened(target=6, *, repeats=1, counts=(), **changes):
    status = replace(OPENED.status, **{"target": target, "best": None, "pruned": 0, **changes})
    status = with_trials(status, **dict(counts))
    return replace(OPENED, status=status, repeating=Repeating(repeats))


def counted(target=6, seconds_left=None, best=None, configurations=(), **counts):
    status = opened(target, best=best, configurations=configurations, counts=counts).status
    return StudyCounted(replace(status, seconds_left=seconds_left))


FIRST = [
    *(OPENED, AttemptStarted(3, 2), AttemptStarted(4, 1), AttemptStarted(5, 1)),
    TrainingStarted(3, {"learning_rate": 0.001}, 10, 120, 4 * 120 + 60, 4),
    TrainingStarted(4, {"learning_rate": 0.0001}, 10, 120, 0),
    1.0,
    *(StepsDone(3, 4, 4 * 120 + 85), StepsDone(4, 0, 30)),
]
"""Three trials run: one is resumed, one is in its first epoch, one is being prepared."""
SECOND = [
    *(*FIRST, 1.0, StepsDone(3, 4, 590), 2.0),
    EpochFinished(3, 4, 5 * 120, {"loss": 0.21, "val_accuracy": 0.95}, 4.0),
    CheckpointKept(3, 5 * 120, 1_300_000, 0.034, 0.002),
    EpochFinished(4, 0, 120, {"loss": 0.7, "val_accuracy": 0.51}, 3.0),
    AttemptEnded(5, 1, "failed", None, "FactoryError: the model factory returned None"),
    Notice("trial 4: the checkpoint does not verify; going on with the one before it"),
    16.0,
    EpochFinished(3, 9, 10 * 120, {"loss": 0.21, "val_accuracy": 0.95}, 4.0),
    *(AttemptEnded(3, 2, "complete", 0.95), 1.0, StepsDone(4, 1, 150)),
]
"""A trial has failed, another one leads, and a checkpoint was written."""
LEADING = configurations_of(trials(0.5, 0.5, repeats=2), "maximize", {"repeats": 2})
SEVERAL = (Objective("val_accuracy", "maximize"), Objective("val_loss", "minimize"))
PREPARED = [
    Doing("importing TensorFlow and the study"),
    OPENED,
    AttemptStarted(4, 1),
    Doing("building the model", 4),
]
TRAINED = [
    TrainingStarted(4, {"learning_rate": 0.001, "layer": "my conv\n"}, 5, 45, 0),
    StepsDone(4, 0, 20),
    EpochFinished(4, 0, 45, {"loss": 0.21, "val_accuracy": 0.9312}, 1.23),
    CheckpointKept(4, 45, 1000),
    CheckpointKept(4, 90, 2048, 0.0345, 0.001),
    Doing("building the model", 5),
    AttemptEnded(4, 1, "complete", 0.95),
    AttemptStarted(3, 2),
    TrainingStarted(3, {}, 5, 45, 90),
    AttemptEnded(3, 2, "failed", None, "ValueError: two\n  lines"),
    Notice("trials are\nspawned"),
    Remark("a worker waits"),
    AttemptEnded(6, 1, "interrupted"),
    AttemptEnded(7, 1, "lost"),
]
CHECKED = [
    ChecksOpened("digits", "verified", 9, 2, "val_accuracy"),
    *running(0),
    AttemptEnded(0, 1, "complete", 0.9),
    2.0,
    TrialVerified(0, "holds", 12.0),
    TrialVerified(1, "differs", 3.0),
]
ENDS = [
    *(opened(counts={"complete": 1}), *running(1, 2, 3, 4, 5)),
    *(ended(1, 0.1), ended(2, outcome="pruned"), ended(3, outcome="failed")),
    *(ended(4, outcome="crashed"), ended(5, outcome="interrupted")),
]
OTHERS = counted(16, complete=6, pruned=1, failed=1, running=5)
LED = counted(configurations=LEADING, complete=1)
RUNS = {
    "run": [*PREPARED, *TRAINED],
    "long": [OPENED, *running(4, epochs=95)]
    + [EpochFinished(4, n, n * 45, {"val_accuracy": 0.5}, 0.1) for n in range(95)],
    "several": [opened(objectives=SEVERAL), *running(0), ended(0, 0.9)],
    "verified": CHECKED,
    "measured": [
        ChecksOpened("digits", "measured", 9, 1, "accuracy"),
        CheckpointMeasured(0, 120, {"loss": 0.4, "accuracy": 0.8}),
    ],
    "secret": [replace(OPENED, storage="postgresql://me:secret@host/db")],
    "disordered": [
        StepsDone(1, 0, 5),
        EpochFinished(1, 0, 10, {}, 1.0),
        CheckpointKept(1, 10, 5),
        Notice("x"),
        ended(1, 0.5),
        ended(2, outcome="lost"),
        opened(4),
    ],
    "opening": [],
    "first": FIRST,
    "second": SECOND,
    "stopping": [*FIRST, RunStopping("stopping: every trial finishes its step")],
    "killing": [*FIRST, RunStopping("killing the trials", at_once=True)],
    "unknown_length": [
        *(OPENED, AttemptStarted(0, 1), TrainingStarted(0, {}, 10, 0, 0), 2.0),
        EpochFinished(0, 0, 25, {"val_accuracy": 0.5}, 2.0),
    ],
    "table": [OPENED, *running(20, 21, 22), 1.0]
    + [EpochFinished(n, 0, 120, {"loss": 0.7, "val_accuracy": 0.51}, 3.0) for n in (20, 21, 22)],
    "crowd": [opened(60), *(AttemptStarted(number, 1) for number in range(20, 60))],
    "markup": [
        OPENED,
        *running(0, params={"kind": "[red]x[/red]"}),
        EpochFinished(0, 0, 100, {"[b]loss": 0.5}, 1.0),
        *running(1, params={"kind": "[red]x[/red]"}),
        ended(1, 0.99),
    ],
    "nan_never_leads": [opened(), *running(3), ended(3, float("nan"))],
    "largest": [opened(), *running(0, 1, 2), ended(0, 0.5), ended(1, 0.9), ended(2, 0.1)],
    "smallest": [
        *(opened(direction="minimize"), *running(0, 1, 2)),
        *(ended(0, 0.5), ended(1, 0.9), ended(2, 0.1)),
    ],
    "earlier_best": [opened(best=BestTrial(0, 0.8, {"lr": 0.7})), *running(1), ended(1, 0.5)],
    "best_elsewhere": [opened(), *running(1), ended(1, 0.5), counted(best=BestTrial(5, 0.85, {}))],
    "best_here": [opened(best=BestTrial(0, 0.8, {})), *running(2), ended(2, 0.9)],
    "repeated": [opened(repeats=2), *running(0), ended(0, 0.99)],
    "led": [opened(repeats=2), *running(0), ended(0, 0.99), LED],
    "ends": ENDS,
    "ends_later": [*ENDS, *running(4, attempt=2), ended(4, 0.5)],
    "resumed": [opened(counts={"interrupted": 2}), *running(0, attempt=2)],
    "ended_by_a_rung": [
        *(opened(), *running(0), ended(0, outcome="paused")),
        RungDecided("promoted none", ended=(0,)),
    ],
    "others": [opened(16), *running(8, 9, 10), OTHERS],
    "others_later": [opened(16), *running(8, 9, 10), OTHERS, ended(8, 0.5), OTHERS],
    "older_count": [
        *(opened(2), *running(0, 1), ended(0, 0.5), ended(1, 0.5)),
        counted(2, running=2),
    ],
    "elsewhere": [
        *(opened(), *running(0), ended(0, outcome="interrupted")),
        counted(running=1, seconds_left=90.0),
    ],
    "more_rounds": [opened(2, repeats=2), counted(4, complete=2, running=2)],
}
"""By name, the events of a run, and the seconds between them."""


@pytest.fixture
def check(monkeypatch):
    """Put a fake check where the command line imports the real one."""
    estimate = Estimate(
        steps_per_epoch=43,
        epoch_seconds=0.15,
        startup_seconds=0.5,
        trial_seconds=2.0,
        study_seconds=16.0,
        workers=3,
        checkpoint_bytes=1 << 20,
        checkpoints_kept=2,
        disk_bytes=32 << 20,
    )
    note = Finding("note", "data", "the data are not shuffled", Line("s.py", 7))
    promises = ("two trials share none",)
    metrics = ("loss", "val_loss")
    sound = CheckReport("digits", (note,), promises, metrics, estimate, {"total": 8.0}, steps=100)
    error = Finding("error", "independence", "layer [bold] is shared", Line("a/s.py", 12))
    warning = Finding("warning", "settings", "deterministic=False")
    bad = replace(sound, findings=(error, warning), estimate=None)

    def fake(target, *, workers, notify):
        assert target == "bad.py" or workers == 3
        return bad if target == "bad.py" else sound

    monkeypatch.setattr("sweeper.checks.check.check_study", fake)


def screen(events, columns, lines, verbosity="normal"):
    """The screen of a terminal after these events."""
    run = Watched(int(columns), int(lines), verbosity)
    with run.listener:
        for event in events:
            run.after(*((event,) if isinstance(event, float) else (0.0, event)))
        return run.shown


def printed(environment, words, call, sweep, reader):
    """What the command prints, and its exit code."""
    reader.studies = {study.status.study: study for study in STUDIES}
    if words[0] == "print":
        return str(reader.studies[words[1]]), 0
    if words[0] != "run":
        answer = call(*words)
        return answer.err + answer.out, answer.code
    name, *flags = words[1:]
    events = RUNS[name.removesuffix(".py")]
    if "COLUMNS" in environment:
        verbosity = "verbose" if "-v" in flags else "normal"
        size = (environment["COLUMNS"], environment["LINES"])
        return "\n".join(screen(events, *size, verbosity)), 0
    sweep.events = [event for event in events if not isinstance(event, float)]
    sweep.opens = None
    answer = call("run", name, *flags)
    return answer.err.removeprefix(f"importing TensorFlow and {name} ...\n"), answer.code


@pytest.mark.parametrize("entry", PRINTED, ids=lambda entry: "".join(entry[:2]))
@pytest.mark.usefixtures("check")
def test_what_is_printed_is_what_the_list_has(entry, call, sweep, reader, monkeypatch):
    variables, typed, code, expected = entry
    environment = dict(variable.split("=") for variable in variables.split())
    if environment:  # a terminal without colours
        environment = {"LINES": "24", "TTY_COMPATIBLE": "1", "TERM": "dumb"} | environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in (word for word in typed.split() if word.endswith(".py")):
        Path(name).touch()
    output, ended = printed(environment, typed.split(), call, sweep, reader)
    lines = [f"    {line}".rstrip() for line in output.splitlines()]
    assert "\n".join(lines).strip("\n") == expected.strip("\n")
    assert ended == int(code or 0)


def test_control_every_entry_of_the_list_is_tested_and_every_run_has_one():
    assert len(PRINTED) == LIST.count("\n$ ")
    assert [name for name in RUNS if f" run {name}.py" not in LIST] == []


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and has each text that was written to it."""

    def __init__(self):
        super().__init__()
        self.written = []

    def isatty(self):
        return True

    def write(self, text):
        self.written.append(text)
        return super().write(text)


@pytest.mark.usefixtures("check")
def test_a_terminal_shows_the_levels_of_a_checks_report_in_colour(call, monkeypatch):
    Path("bad.py").touch()
    plain = call("check", "bad.py").out
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", terminal)
    call("check", "bad.py")
    assert "\x1b[1;31merror\x1b[0m [independence]" in terminal.getvalue()
    assert "\x1b[32mholds\x1b[0m    two trials share none" in terminal.getvalue()
    assert re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()) == plain


@pytest.mark.parametrize(
    ("environment", "redraws"),
    [
        ("TERM=xterm", True),
        ("TERM=xterm CI=false NO_COLOR=", True),
        ("TERM=xterm CI=true", False),
        ("TERM=xterm CI=1", False),
        ("TERM=xterm NO_COLOR=1", False),
        ("TERM=dumb", False),
    ],
)
def test_a_terminal_redraws_unless_it_is_asked_not_to_and_else_gets_whole_lines(
    environment, redraws, call, sweep, monkeypatch
):
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for variable in environment.split():
        monkeypatch.setenv(*variable.split("="))
    streams = [Terminal(), Terminal()]
    sweep.events = TRAINED
    for stream, flags in zip(streams, ((), ("-q",)), strict=True):
        monkeypatch.setattr("sys.stderr", stream)
        call("run", "s.py", *flags)
    assert ["\x1b" in stream.getvalue() for stream in streams] == [redraws, False]
    texts = [text for stream in streams[redraws:] for text in stream.written if text]
    assert texts
    assert all(text.count("\n") == 1 and text.endswith("\n") for text in texts), texts
