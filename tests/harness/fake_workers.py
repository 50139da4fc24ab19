"""Worker processes with `fake_trial` in the place of TensorFlow, to be killed, stopped and cut off."""

import contextlib
import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scripted_trials import definition, row_of, slot_context
from sweeps import results_of

from sweeper.db import rungs
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.channel import Channel
from sweeper.run.serving import run_slots
from sweeper.run.worker import context as context_module
from sweeper.run.worker.leases import WorkerRow
from sweeper.run.worker.slot import serve_slot
from sweeper.search.spec import search_window

FAKE_TRIAL = Path(__file__).with_name("fake_trial.py")
LIMIT = 60.0

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["sweeper.run.worker.slot", "sweeper.run.cluster.engines", "sweeper.run.run"]
)


class FakeLauncher:
    """Starts `fake_trial` for a trial."""

    isolation = "spawn"

    def __init__(self, pace, first_pace, step=None):
        self._step = step
        self._paces = [pace] if first_pace is None else [pace, first_pace]

    def launch(self, assignment):
        pace = self._paces.pop() if len(self._paces) > 1 else self._paces[0]
        channel, far_end = Channel.pair()
        with Path(assignment.log).open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-S", "-E", str(FAKE_TRIAL), str(far_end.fileno())),
                    *(str(pace), str(self._step or 0)),
                ],
                pass_fds=[far_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        far_end.close()
        with contextlib.suppress(OSError):
            channel.send(assignment)
        return FakeTrialProcess(channel, process)

    def close(self):
        pass


class FakeTrialProcess:
    def __init__(self, channel, process):
        self.channel = channel
        self.pid = process.pid
        self._process = process

    def wait(self, timeout):
        try:
            return ExitStatus(self._process.wait(timeout))
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        self._process.kill()


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker works."""

    url: str
    runs: str
    study: str
    slots: int = 1
    lease_seconds: float = 60.0
    longest_absence: float = 600.0
    pace: float = 0.02
    first_pace: float | None = None
    host: str | None = None
    decides_at: int | None = None
    step: float | None = None


def new_study(repository, runs, study, *, epochs, **arguments):
    """Create a study, and return the options of a worker for it."""
    settings = definition(
        **{"name": study, "seed": 11, "concurrency": 4, "epochs": epochs, **arguments}
    ).settings()
    repository.create_or_open(row_of(settings, search_window(settings)))
    return WorkerOptions(str(repository.database.url_from_anywhere), str(runs), study)


def undisturbed_results(repository, runs, study="undisturbed", **arguments):
    """Return the results of a study where nothing befalls its worker."""
    options = new_study(repository, runs, study, **arguments)
    with FakeWorker(replace(options, slots=arguments["trials"])) as worker:
        assert worker.end() == 0
    return results_of(repository.trials(study))


def decide_early(members):
    """Take a rung for full once it has so many members."""
    all_members = rungs._members
    rungs._members = lambda *which: [
        row for row in all_members(*which) if row.result or row.reached is not None
    ]
    rungs._is_full = lambda rows, _expected: len(rows) >= members


def work(options, events):
    """What a worker process runs."""
    os.setsid()
    context_module.LONGEST_ABSENCE = options.longest_absence
    if options.decides_at is not None:
        decide_early(options.decides_at)

    def tell(event):
        # A test that has seen enough does not read on.
        with contextlib.suppress(OSError):
            events.send_bytes(json.dumps([type(event).__name__, asdict(event)]).encode())

    with Database.open(options.url, create=False) as database:
        repository = Repository(database)
        settings = StudySettings.from_json(dict(repository.study(options.study).definition))
        context = slot_context(
            *(repository, settings, Path(options.runs)),
            *(FakeLauncher(options.pace, options.first_pace, options.step), tell),
            host=options.host,
            worker_row=WorkerRow(slots=options.slots, lease_seconds=options.lease_seconds),
        )
        signal.signal(signal.SIGTERM, lambda *_: context.stopping.set())
        run_slots(lambda: serve_slot(context), options.slots, context.stopping)
    if context.error is not None:
        with contextlib.suppress(OSError):
            events.send_bytes(json.dumps(["Error", {"message": str(context.error)}]).encode())
        sys.exit(1)
    os._exit(0)


class FakeWorker:
    """A worker process, and what it tells."""

    def __init__(self, options):
        reader, writer = _server.Pipe(duplex=False)
        self.options = options
        self.process = _server.Process(target=work, args=(options, writer), daemon=False)
        self.process.start()
        writer.close()
        self._events = reader
        self.events = []
        self._news = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.kill()
        self._reader.join(LIMIT)
        self.process.close()
        self._events.close()

    @property
    def pid(self):
        assert self.process.pid is not None
        return self.process.pid

    @property
    def notices(self):
        return [fields["message"] for kind, fields in self.events if kind in ("Notice", "Error")]

    def wait_for(self, kind, text=""):
        """The next event of this kind whose fields hold ``text``."""
        deadline = time.monotonic() + LIMIT
        while True:
            news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            assert news is not None, f"ended without {kind} {text}: {self.events[-5:]}"
            if news[0] == kind and text in json.dumps(news[1]):
                return news[1]

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """SIGKILL to its whole session, trial processes included."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.join(LIMIT)

    def end(self):
        """Wait for its end; the exit code."""
        self.process.join(LIMIT)
        assert self.process.exitcode is not None, f"it hangs: {self.events[-5:]}"
        self._reader.join(LIMIT)
        return self.process.exitcode

    def _read(self):
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, fields = json.loads(self._events.recv_bytes())
                self.events.append((kind, fields))
                self._news.put((kind, fields))
        self._news.put(None)


def faults_of(trials, expected):
    """How the trials differ from "each exactly one result, as in the undisturbed run"."""
    faults = []
    for trial in trials:
        ended = [a.number for a in trial.attempts if a.outcome == "complete"]
        if len(ended) != 1:
            faults.append(f"trial {trial.number} has {len(ended)} complete attempts")
        if ended and ended[0] != len(trial.attempts):
            faults.append(f"trial {trial.number} went on after its result")
    results = results_of(trials)
    return faults + [
        f"trial {number} is {results.get(number)}, and undisturbed {expected.get(number)}"
        for number in sorted(results.keys() | expected.keys())
        if results.get(number) != expected.get(number)
    ]
