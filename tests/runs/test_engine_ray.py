"""A Ray cluster that a run makes lets nobody else in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = """
import ipaddress, json, os, subprocess, sys
import psutil
from sweeper.run.cluster.engines import RayCluster
from sweeper.run.cluster.engines import run_tasks
from ray_task import task

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
print(json.dumps([cluster.nodes, codes, len(sockets) > 3, outside, ran != [str(os.getpid())]]))
# A cluster that is there already: this one, as it looks where it has one processor.
ray.cluster_resources = lambda: {"CPU": 1.0}
try:
    RayCluster("auto", 1)
except Exception as error:
    print(type(error).__name__, error)
cluster.close()
"""

ONE = """
import ray
from sweeper.run.cluster.engines import RayCluster

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
try:
    RayCluster("auto", 1)
except Exception as error:
    print(type(error).__name__, error)
"""

REFUSED = "UsageError the Ray cluster at auto has 1 processor, and"


def said_by(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{directory}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.whole
def test_only_who_is_on_this_machine_and_knows_the_token_may_ask_a_cluster_made_here_anything(
    tmp_path: Path,
) -> None:
    """And the one task of a run with ``--workers 1`` runs there, not in the driver."""
    (tmp_path / "ray_task.py").write_text(
        "import os\n\n\ndef task(text):\n    return str(os.getpid())\n"
    )
    said = said_by(MAKE, tmp_path)
    expected = "[1, [[0, false], [1, true], [1, true]], true, [], true]"
    first, second = said.stdout.splitlines()
    assert first == expected, said.stderr
    assert second.startswith(REFUSED)


@pytest.mark.whole
def test_a_cluster_of_one_processor_is_refused(tmp_path: Path) -> None:
    said = said_by(ONE, tmp_path)
    assert said.stdout.startswith(REFUSED), said.stderr
