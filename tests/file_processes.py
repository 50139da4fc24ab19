"""Each file of tests runs in a process of its own, forked from one that has imported everything.

Importing TensorFlow and collecting take longer than most files; so does the import that fork servers
and commands of tests are forked from. Each is done once for the whole run. And no file finds modules,
paths, sessions or threads that another one has left, in whatever order they run: it fails alone if it
fails with others. As for trials, that is safe only while nothing has run an op, which is checked.

Several files run side by side, and their reports come back through a pipe. ``--processes 0`` runs
everything in this process, for a debugger.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
import weakref
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest
from forked_programs import SECONDS

from sweeper.support.processes import fork

BY_DEFAULT = 2
"""Processes side by side: as many as the machines have cores that this is measured on. With one more each had
so much less of the caches that the whole run took longer, though many wait for trials' processes."""


@dataclass
class _Running:
    """A file that is being run: where its reports come out, and how far it has come."""

    items: list[pytest.Item]
    pid: int
    ended: int
    reports: Connection
    directory: Path
    at: pytest.Item | None = None
    through: int = 0
    reporting: bool = True
    finished: bool = False
    broken: str = ""


class FileProcesses:
    """Runs what was collected.

    Args:
        processes: How many files run side by side.
        begin: What each process does first.

    Attributes:
        seconds: Processor seconds of each file that has ended, its own processes included.
    """

    def __init__(self, processes, begin):
        self._processes = processes
        self._begin = begin
        self._running = []
        self.seconds = {}
        self._refused = None

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        report = yield
        if self._refused is None and isinstance(collector, pytest.Module):
            reason = _why_not_fork()
            self._refused = None if reason is None else f"importing {collector.path} {reason}"
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        config = session.config
        if config.option.collectonly or session.testsfailed:
            return None  # pytest's own says what is wrong
        if self._refused is not None:
            raise pytest.UsageError(f"{self._refused}: files could not be forked")
        files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
        base = config._tmp_path_factory.getbasetemp()
        # Several files are at it at once: a point for each test, and no name before it.
        config.pluginmanager.getplugin("terminalreporter").showfspath = False
        gc.collect()
        gc.freeze()
        try:
            for number, items in enumerate(files):
                while len(self._running) >= self._processes:
                    self._listen(session)
                self._running.append(_fork(session, items, base / f"f{number}", self._begin))
            while self._running:
                self._listen(session)
        finally:
            for file in self._running:
                os.kill(file.pid, signal.SIGKILL)
                os.waitpid(file.pid, 0)
        return True

    def _listen(self, session):
        """Wait until something has come from a file or one has ended, and pass it on."""
        ready = wait(
            [file.ended for file in self._running]
            + [file.reports.fileno() for file in self._running if file.reporting]
        )
        for file in list(self._running):
            while file.reporting and file.reports.poll():
                try:
                    self._pass_on(session.config, file, file.reports.recv())
                except EOFError:
                    file.reporting = False
            if file.ended in ready:
                self._conclude(session.config, file)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def _pass_on(self, config, file, message):
        hook = config.hook
        kind, content = message
        if kind == "started":
            file.at = file.items[content]
            hook.pytest_runtest_logstart(nodeid=file.at.nodeid, location=file.at.location)
        elif kind == "through":
            file.through += 1
            assert file.at is not None
            hook.pytest_runtest_logfinish(nodeid=file.at.nodeid, location=file.at.location)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=config, data=content)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "broken":
            file.broken = content
        else:
            file.finished = True

    def _conclude(self, config, file):
        """Where a process has not ended well, say so of each test that it was not through with."""
        self._running.remove(file)
        os.close(file.ended)
        _, status, used = os.wait4(file.pid, 0)
        programs = file.directory / "seconds"
        forked = map(float, programs.read_text().split()) if programs.exists() else ()
        self.seconds[file.items[0].path] = used.ru_utime + used.ru_stime + sum(forked)
        file.reports.close()
        if file.finished:
            return
        code = os.waitstatus_to_exitcode(status)
        for item in file.items[file.through :] or file.items[-1:]:
            when = "while it ran" if item is file.at else "before it ran"
            if file.through == len(file.items):
                when = "after it, as the last"
            ended = f"ended with {code} (negative: by that signal) {when}"
            text = f"the process of {item.path} {ended}\n{file.broken}"
            stage = "call" if file.through < len(file.items) else "teardown"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, stage)
            config.hook.pytest_runtest_logreport(report=report)


def _why_not_fork():
    """Why a process that is forked here would hang sooner or later; None where it would not."""
    others = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    if others:
        return f"has left threads, {', '.join(others)}; end them"
    eager = sys.modules.get("tensorflow.python.eager.context")
    if eager is not None and eager.context()._context_handle is not None:
        return "has run TensorFlow; leave that to a fixture"
    return None


def _fork(session, items, directory, begin):
    """Have a process run the tests of a file."""
    reports, reporting = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = fork()
    if pid == 0:
        reports.close()
        _run(session.config, items, directory, reporting, begin)
    reporting.close()
    return _Running(items, pid, os.pidfd_open(pid), reports, directory)


def _run(config, items, directory, reporting, begin):
    """In the forked process: run the tests, and end."""
    code = 1
    try:
        _stand_alone(config, directory)
        reporter = _Reporter(config, reporting)
        config.pluginmanager.register(reporter)
        begin()
        config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=False)
        for number, item in enumerate(items):
            reporting.send(("started", number))
            after = items[number + 1] if number + 1 < len(items) else None
            config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            reporting.send(("through", number))
        # As at the end of a run: what was left open and is nobody's any more is an error.
        config.pluginmanager.getplugin("unraisableexception").pytest_unconfigure(config)
        atexit._run_exitfuncs()
        reporting.send(("finished", None))
        code = 0
    except BaseException:
        with suppress(OSError):
            reporting.send(("broken", traceback.format_exc()))
    finally:
        os._exit(code)


def _stand_alone(config, directory):
    """Share nothing with the process that it was forked from: files, output, what is done at its end."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture.is_globally_capturing() or capture._global_capturing is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
    terminal = config.pluginmanager.getplugin("terminalreporter")
    terminal._tw._file = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    directory.mkdir()
    os.environ[SECONDS] = str(directory / "seconds")
    config._tmp_path_factory._basetemp = directory
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False


class _Reporter:
    """Sends what pytest reports in a forked process."""

    def __init__(self, config, reporting):
        self._config = config
        self._reporting = reporting

    def pytest_runtest_logreport(self, report):
        to_data = self._config.hook.pytest_report_to_serializable
        self._reporting.send(("report", to_data(config=self._config, report=report)))
