"""Notebooks that run in a kernel of their own: cells are executed, and the kernel is killed between or in them."""

import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class Kernel:
    """A kernel with a client; `execute` gives what it publishes."""

    def __init__(self, manager, client):
        self._manager = manager
        self._client = client

    async def execute(self, code, *, until=None):
        """What the kernel publishes while it runs ``code``, but for its state.

        ``until`` is asked of every message, and ends the listening, with the cell still running.
        """
        published = []
        sent = self._client.execute(code)
        while True:
            message = await self._client.get_iopub_msg(timeout=180)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind = message["msg_type"]
            content = message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return published
            if kind not in ("status", "execute_input"):
                published.append((kind, content))
                if until is not None and until(kind, content):
                    return published

    async def kill(self):
        """Kill the kernel's process at once, as "Restart" does of one that does not answer."""
        await self._manager.signal_kernel(signal.SIGKILL)
        await self._manager.provisioner.wait()


@asynccontextmanager
async def kernel(directory):
    """A kernel that runs in a directory."""
    from jupyter_client.manager import AsyncKernelManager

    manager = AsyncKernelManager(transport="ipc", ip=str(directory / "kernel"))
    manager.kernel_spec.argv = [
        *(sys.executable, "-P", "-m", "ipykernel_launcher", "-f", "{connection_file}")
    ]
    paths = os.pathsep.join((str(_ROOT), str(Path(__file__).parent)))
    await manager.start_kernel(cwd=str(directory), env={**os.environ, "PYTHONPATH": paths})
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=60)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def errors_of(published):
    """The errors among what a cell has published."""
    return [
        f"{content['ename']}: {content['evalue']}" for kind, content in published if kind == "error"
    ]


def text_of(published):
    """What a cell prints, and the text of the value that it ends with."""
    streams = [content for kind, content in published if kind == "stream"]
    texts = [stream["text"] for stream in streams if stream["name"] == "stdout"]
    texts += [
        content["data"]["text/plain"] for kind, content in published if kind == "execute_result"
    ]
    return "".join(texts)


def html_of(published):
    """The HTML of the value that a cell ends with."""
    [html] = [c["data"]["text/html"] for kind, c in published if kind == "execute_result"]
    return html


def pictures_of(published):
    """The PNG pictures, in base64, that a cell shows."""
    return [
        content["data"]["image/png"]
        for kind, content in published
        if kind in ("display_data", "execute_result") and "image/png" in content["data"]
    ]
