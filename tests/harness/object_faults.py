"""Object stores that fail on purpose: killed at an operation, out of date, or a tenth of the time.

The faults sit behind `ObjectStore`, the one place through which a remote checkpoint is touched, or
on the network in front of a real server of the S3 protocol.
"""

import errno
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from checkpoint_faults import AtOperation, counted

from sweeper.checkpoint.format import MANIFEST_FILE
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.remote_objects import ObjectStore
from sweeper.checkpoint.remote_store import RemoteCheckpointStore
from sweeper.support.paths import RemotePath

BUCKET = "sweeps"

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(sys.argv[1], 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "nobody's",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server(host="127.0.0.1"):
    """Give the URL of a server of the S3 protocol, in a process of its own, with one bucket."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield url
    finally:
        process.communicate()


def s3_environment(url):
    """The variables by which a process finds the server, as a user sets them."""
    return {**_ENVIRONMENT, "AWS_ENDPOINT_URL": url}


def set_s3_environment(monkeypatch, url):
    for name, value in s3_environment(url).items():
        monkeypatch.setenv(name, value)


class FileObjects(ObjectStore):
    """Objects that are files of this disk: they outlive a killed process, and a fork."""

    def __init__(self):
        super().__init__("file", patience=0.0)

    def connect(self):
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(auto_mkdir=True, skip_instance_cache=True)


def prefix_of(directory):
    """The place in `FileObjects` that is ``directory``, seen from the root directory."""
    return RemotePath("file", directory.absolute().parts[1:])


class CountingObjects(FileObjects):
    """Counts the operations that change something, and those that ask by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def before(self, name): ...

    def after(self, name): ...

    def upload(self, path, file):
        self._enter(f"upload {path.name}")
        super().upload(path, file)
        self.after("upload")

    size = counted(FileObjects, "size")

    def remove(self, path):
        self._enter(f"remove {path.name}")
        super().remove(path)
        self.after("remove")

    def _enter(self, name):
        self.names.append(name)
        self.before(name)


class KillingObjects(AtOperation, CountingObjects):
    """Kills this process at an operation."""


class FailingObjects(AtOperation, CountingObjects):
    """Raises an error at an operation."""

    def end(self):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class ManifestFirst(RemoteCheckpointStore):
    """Broken: the manifest is stored before what it names."""

    def _upload(self, local, step):
        path = self._free_path(step)
        self._objects.upload(path / MANIFEST_FILE, local / MANIFEST_FILE)
        return super()._upload(local, step)

    def _free_path(self, step):
        return self.directory / str(CheckpointName(step))


class FailingNetwork:
    """Forwards HTTP to a server; a request in ten fails, in one of four ways."""

    def __init__(self, target, seed, share=0.1):
        self.failures = 0
        numbers = random.Random(seed)
        lock = threading.Lock()
        address = urlsplit(target).netloc
        network = self

        class Forwarding(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                with lock:
                    failing = numbers.random() < share
                    fault = numbers.choice(["cut", "error", "unanswered", "half"])
                    network.failures += failing
                fault = fault if failing else "whole"
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if fault == "error":
                    self.answer(500, [], b"<Error><Code>InternalError</Code></Error>")
                elif fault != "cut":
                    with closing(http.client.HTTPConnection(address, timeout=30)) as server:
                        server.request(self.command, self.path, body, dict(self.headers))
                        response = server.getresponse()
                        content = response.read()
                    if fault == "half":
                        self.answer(response.status, response.getheaders(), content, 2)
                    elif fault == "whole":
                        self.answer(response.status, response.getheaders(), content)
                if fault in ("cut", "unanswered", "half"):
                    self.close_connection = True
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815

            def answer(self, status, headers, body, part=1):
                self.send_response_only(status)
                named = {name.lower() for name, _ in headers}
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                if "content-length" not in named:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // part])

            def log_message(self, *_arguments): ...

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_arguments):
                """A client that goes away is what this is about."""

        self._server = Quiet(("127.0.0.1", 0), Forwarding)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exception):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
