"""A Ray cluster that a run makes lets nobody else in."""

from __future__ import annotations

import subprocess
import sys

MAKE = """
import json, os, subprocess, sys
from sweeper.execution.engine_ray import RayCluster

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
print(json.dumps([cluster.nodes, codes]))
cluster.close()
"""


def test_only_who_knows_the_token_of_a_cluster_made_here_may_ask_it_anything() -> None:
    said = subprocess.run(
        [sys.executable, "-c", MAKE], capture_output=True, text=True, timeout=120, check=False
    )
    assert said.stdout.strip() == "[1, [[0, false], [1, true], [1, true]]]", said.stderr
