"""A Dask cluster made here runs nobody's code but ours, though every user reaches the loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CLUSTER = '''
"""Make a cluster as a run does, attack it, and use it as a run does."""
import asyncio
import ipaddress

import psutil
from dask_task import task
from distributed.core import connect
from distributed.security import Security

from sweeper.run.cluster.engines import DaskCluster
from sweeper.run.cluster.engines import run_tasks


def listening(process):
    every = [process, *process.children(recursive=True)]
    return {c.laddr for p in every for c in p.net_connections("inet") if c.status == "LISTEN"}


async def lets_in(address, security=None):
    try:
        comm = await connect(address, timeout=5, **(security or {}))
        await comm.write({"op": "identity", "reply": True})
        await comm.read()
        await comm.close()
        return True
    except (OSError, TypeError, RuntimeError):
        return False


async def speaks_http(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
    try:
        said = await asyncio.wait_for(reader.read(4), 2)
    except (OSError, TimeoutError):
        said = b""
    writer.close()
    return said == b"HTTP"


if __name__ == "__main__":
    cluster = DaskCluster(None, 1)
    sockets = listening(psutil.Process())
    ours = cluster._made.security.get_connection_args("client")
    others = Security.temporary().get_connection_args("client")
    scheduler = cluster._made.scheduler_address
    port = scheduler.rpartition(":")[2]
    print("loopback", all(ipaddress.ip_address(s.ip).is_loopback for s in sockets), bool(sockets))
    print("let in", *[asyncio.run(lets_in(a, s)) for a, s in (
        (scheduler, ours), (scheduler, others), (f"tcp://127.0.0.1:{port}", None))])
    print("http", any(asyncio.run(speaks_http(s)) for s in sockets))
    print(*run_tasks(cluster, task, ["it"], 1))
    cluster.close()
'''


def test_a_dask_cluster_made_here_lets_in_only_those_that_hold_its_key(tmp_path: Path) -> None:
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    (tmp_path / "dask_task.py").write_text(
        "import os\n\n\ndef task(text):\n    return f'{text} ran in {os.getpid()}'\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, ran = done.stdout.splitlines()
    assert lines == ["loopback True True", "let in True False False", "http False"]
    assert ran.startswith("it ran in ")
