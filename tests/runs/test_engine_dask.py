"""A Dask cluster made here runs nobody's code but ours, though every user reaches the loopback."""

import os
from pathlib import Path

import pytest
from sweeps import python

CLUSTER = '''
"""Make a cluster as a run does, attack it, and use it as a run does."""
import asyncio
import ipaddress

import psutil
from cluster_task import task
from distributed.core import connect
from distributed.security import Security

from sweeper.run.cluster.engines import DaskCluster, run_tasks


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


def with_task(directory, *words):
    """Run Python where a task can be imported that says in which process it ran."""
    text = "import os\n\n\ndef task(text):\n    return f'{text} ran in {os.getpid()}'\n"
    (directory / "cluster_task.py").write_text(text)
    path = f"{Path(__file__).parents[2]}{os.pathsep}{directory}"
    return python(*words, cwd=directory, env={"PYTHONPATH": path})


@pytest.mark.whole
def test_a_dask_cluster_made_here_lets_in_only_those_that_hold_its_key(tmp_path):
    (tmp_path / "cluster.py").write_text(CLUSTER)
    ended = with_task(tmp_path, "cluster.py")
    assert ended.code == 0, ended.err
    *lines, ran = ended.out.splitlines()
    assert lines == ["loopback True True", "let in True False False", "http False"]
    assert ran.startswith("it ran in ")


MAKE = """
import ipaddress, json, os, subprocess, sys
import psutil
from sweeper.run.cluster.engines import RayCluster, run_tasks
from cluster_task import task

cluster = RayCluster(None, 1)
import ray

address = ray.get_runtime_context().gcs_address
client = '''
import sys
from ray._raylet import GcsClient

print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))
'''
bare = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
codes = []
for mode, token in (("token", os.environ["RAY_AUTH_TOKEN"]), ("token", "0" * 64), ("disabled", "")):
    keys = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token}
    asked = subprocess.run([sys.executable, "-c", client, address], env={**bare, **keys},
                           capture_output=True, text=True, timeout=60)
    codes.append([asked.returncode, "InvalidAuthToken" in asked.stderr])
me = psutil.Process()
sockets = [c.laddr.ip for p in (me, *me.children(recursive=True))
           for c in p.net_connections("inet") if c.status == "LISTEN"]
outside = [s for s in sockets if not ipaddress.ip_address(s.removeprefix("::ffff:")).is_loopback]
ran = run_tasks(cluster, task, ["1"], 1)
print(json.dumps([cluster.nodes, codes, len(sockets) > 3, outside, ran != [f"1 ran in {os.getpid()}"]]))
# A cluster that is there already: this one, as it looks where it has one processor.
ray.cluster_resources = lambda: {"CPU": 1.0}
try:
    RayCluster("auto", 1)
except Exception as error:
    print(type(error).__name__, error)
cluster.close()
"""


REFUSED = "UsageError the Ray cluster at auto has 1 processor, and"


@pytest.mark.whole
def test_only_who_is_on_this_machine_and_knows_the_token_may_ask_a_cluster_made_here_anything(
    tmp_path,
):
    """And the one task of a run with ``--workers 1`` runs there, not in the driver."""
    ended = with_task(tmp_path, "-c", MAKE)
    expected = "[1, [[0, false], [1, true], [1, true]], true, [], true]"
    first, second = ended.out.splitlines()
    assert first == expected, ended.err
    assert second.startswith(REFUSED)
