"""Machines that share nothing: each with its own network, name, boot, processes, directory and clock.

They are namespaces of this machine's kernel, which needs root on Linux, ``ip``, libfaketime and the programs of
PostgreSQL. A `Host` reaches the `Services` by one link, which can be taken away.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from object_faults import BUCKET, s3_environment, s3_server

_NEEDED = ("ip", "unshare", "runuser", "cc")

_SLEEP = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) ? errno : 0;
}
"""
"""What `time.sleep` calls: libfaketime 0.9.10 refuses it where it leaves the monotonic clock alone."""

_BEGIN = """
mount --bind {boot} /proc/sys/kernel/random/boot_id
if [ -n "{shared}" ]; then mount --bind {own} {shared}; cd {shared}; fi
if [ -e /etc/machine-id ]; then mount --bind {machine} /etc/machine-id; fi
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
hostname {name}
"$@"
exit $?
"""
"""What a host's first process does before its program."""


def require_namespaces():
    """Skip where there is no way to make such hosts: it is a property of the machine."""
    lacking = [name for name in _NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or lacking or not _postgresql_programs() or not has_clocks():
        pytest.skip(f"hosts are made by root, with PostgreSQL, libfaketime and {' '.join(_NEEDED)}")


def has_clocks():
    """Whether a process can have another time of day: libfaketime and a compiler are there."""
    return _faketime() is not None and shutil.which("cc") is not None


def clock(directory, offset):
    """The variables by which a process has another time of day, such as ``"+1h"``, and no other clock."""
    library = directory / "sleep.so"
    if not library.exists():
        source = directory / "sleep.c"
        source.write_text(_SLEEP)
        made = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(made, check=True, capture_output=True)
    # Not the program faketime: what it shares between processes is named by pids, which two hosts both have.
    return {
        "LD_PRELOAD": f"{library}:{_faketime()}",
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def _faketime():
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def _postgresql_programs():
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def _ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Services:
    """One PostgreSQL and one object store, which every host reaches at ``address``, as a context manager."""

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self.address = f"10.76.{os.getpid() % 250}.1"
        with self._stack:
            _ip("addr", "add", f"{self.address}/32", "dev", "lo")
            self._stack.callback(_ip, "addr", "delete", f"{self.address}/32", "dev", "lo")
            programs = _postgresql_programs()
            # Not in pytest's directory: each pytest that begins closes it to the user postgres.
            directory = tempfile.TemporaryDirectory(prefix="sweeper-postgresql-")
            self._directory = Path(self._stack.enter_context(directory))
            shutil.chown(self._directory, "postgres")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            data = str(self._directory / "data")
            as_postgres = ["runuser", "-u", "postgres", "--"]
            made = [*as_postgres, f"{programs}/initdb", "-D", data, "-A", "trust", "-U", "sweeper"]
            subprocess.run(made, check=True, capture_output=True)
            with Path(data, "pg_hba.conf").open("a") as rules:
                rules.write("host all all 0.0.0.0/0 trust\n")
            server = [f"{programs}/postgres", "-D", data, "-p", str(self.port), "-h", "*", "-k", ""]
            with (self._directory / "server.log").open("w") as log:
                # Its own session, because a Ctrl-C that a test sends is for the hosts.
                database = subprocess.Popen(
                    [*as_postgres, *server], stderr=log, start_new_session=True
                )
            stop = [*as_postgres, f"{programs}/pg_ctl", "-D", data, "-m", "fast", "stop"]
            self._stack.callback(database.wait)
            self._stack.callback(subprocess.run, stop, check=False, capture_output=True)
            objects = self._stack.enter_context(s3_server("0.0.0.0"))
            self.objects = int(objects.rpartition(":")[2])
            ready = [f"{programs}/pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
            for _ in range(300):
                if subprocess.run(ready, check=False, capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_exception):
        self._stack.close()

    @property
    def storage(self):
        return f"postgresql+psycopg://sweeper@{self.address}:{self.port}/postgres"

    @property
    def environment(self):
        """How a host finds both."""
        return {
            **s3_environment(f"http://{self.address}:{self.objects}"),
            "SWEEPER_STORAGE": self.storage,
            "SWEEPER_CHECKPOINTS": f"s3://{BUCKET}/hosts",
        }


class Host:
    """A machine, as a context manager; ``clock`` is what its time of day is off by, such as ``"+1h"``.

    With ``shared`` it has its directory at that path, as other hosts have theirs.
    """

    def __init__(self, number, directory, services, clock, shared=""):
        self.number, self.clock, self.directory, self.shared = number, clock, directory, shared
        self.name = f"sweeper-{os.getpid()}-{number}"
        self._link = f"sw{os.getpid() % 100000}-{number}"
        self._network = f"10.{77 + number}.{os.getpid() % 250}"
        self.address = f"{self._network}.2"
        self.environment = services.environment

    def __enter__(self):
        self.directory.mkdir(parents=True)
        _ip("netns", "add", self.name)
        peer = f"{self._link}p"
        _ip("link", "add", self._link, "type", "veth", "peer", "name", peer)
        _ip("link", "set", peer, "netns", self.name)
        _ip("addr", "add", f"{self._network}.1/24", "dev", self._link)
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", peer)
        _ip("-n", self.name, "link", "set", peer, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.link(up=True)
        _ip("-n", self.name, "route", "add", "default", "via", f"{self._network}.1")
        self.boots = 0
        self.process = None
        return self

    def __exit__(self, *_exception):
        if self.process is not None:
            self.lose()
        _ip("link", "delete", self._link)
        _ip("netns", "delete", self.name)

    def link(self, *, up):
        """Take the link to the services away, or give it back."""
        _ip("link", "set", self._link, "up" if up else "down")

    def lose(self):
        """Take its power away: everything that it runs ends at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def run(self, *words, env=None):
        """Begin a Python program after a boot, in ``process``, whose end is that of all it ran."""
        self.boots += 1
        ids = self.directory.parent / f"{self.name}-ids"
        ids.mkdir(exist_ok=True)
        boot, machine = ids / f"boot-{self.boots}", ids / "machine"
        boot.write_text(f"{uuid.uuid4()}\n")
        machine.write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, self.name).hex}\n")
        begin = _BEGIN.format(
            boot=boot, machine=machine, name=self.name, own=self.directory, shared=self.shared
        )
        apart = [
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--ipc",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        program = ["env", *self._clock(), sys.executable, *map(str, words)]
        kept = {n: v for n, v in os.environ.items() if not n.startswith("SWEEPER_")}
        log = (self.directory.parent / f"{self.name}.log").open("a")
        with log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *apart, "sh", "-ec", begin, "sh", *program],
                cwd=self.directory,
                env={
                    **kept,
                    **self.environment,
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    **(env or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _clock(self):
        """The words that give a program the host's clock; programs before it have this machine's."""
        return [f"{n}={v}" for n, v in clock(self.directory.parent, self.clock).items()]

    def log(self):
        return (self.directory.parent / f"{self.name}.log").read_text()
