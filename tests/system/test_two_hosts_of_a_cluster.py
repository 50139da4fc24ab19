"""A sweep whose workers Dask or Ray places on two machines that share no disk, each and its link lost on the way."""

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hosts import Host, Services, require_namespaces
from sweeps import LIMIT, RunningCommand, differing, results_of
from test_two_hosts import LEASE, STUDY, alone, closed_as_lost
from waiting import until

from sweeper.db.database import Database
from sweeper.db.repository import Repository

TRIALS = 24

FAULTS = [(kind, moment) for moment in ("epoch", "commit") for kind in ("host", "link")]

_JOINED = {
    "dask": "import distributed; distributed.Client('{address}').wait_for_workers(2, {limit})",
    "ray": """
import time, ray
ray.init("{address}", log_to_driver=False)
while ray.cluster_resources().get("CPU", 0) < 4:
    time.sleep(0.2)
""",
}


_SOON = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""A host that cannot be reached is given up after seconds, and not after half a minute."""


@dataclass
class Cluster:
    """A scheduler on this machine, and what a host runs to join it."""

    engine: str
    services: Services
    port: int = 0

    def __enter__(self):
        self.port = 20000 + os.getpid() % 10000
        address = f"{self.services.address}:{self.port}"
        if self.engine == "dask":
            self.address = f"tcp://{address}"
            words = ["-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", self.port]
        else:
            self.address = address
            words = ["-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", 0]
            words += ["--node-ip-address", self.services.address, "--port", self.port]
            words += ["--include-dashboard", "false"]
        self._head = subprocess.Popen(
            [sys.executable, *map(str, words)], env={**os.environ, **_SOON}, start_new_session=True
        )
        return self

    def __exit__(self, *_exception):
        self._head.terminate()
        self._head.wait(LIMIT)

    def joining(self, host):
        """The words with which a host joins: there is room for the workers of both."""
        if self.engine == "dask":
            words = ["-m", "distributed.cli.dask_worker", self.address, "--no-nanny"]
            return [
                *words,
                "--nthreads",
                2,
                "--no-dashboard",
                "--name",
                f"{host.name}-{host.boots}",
            ]
        words = ["-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", 2]
        return [*words, "--address", self.address, "--node-ip-address", host.address]

    def wait_for(self, nodes):
        """Wait until all have joined; a node that has ended, as Ray's do once they are given up, begins again."""
        program = _JOINED[self.engine].format(address=self.address, limit=LIMIT)
        with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as joined:

            def all_there():
                for node in nodes:
                    if node.process.poll() is not None:
                        node.begin(self)
                return joined.poll() is not None

            if not until(all_there, LIMIT):
                joined.kill()
        assert joined.returncode == 0, [node.log()[-2000:] for node in nodes]


class Node(Host):
    """A host of the cluster; its part of the study pauses where it is asked to."""

    def begin(self, cluster):
        env = {"SWEEPER_TEST_HOST": str(self.shared), "SWEEPER_LEASE_SECONDS": str(LEASE)}
        self.run(*cluster.joining(self), env={**_SOON, **env})

    def ask(self, moment):
        (self.directory / f"ask-{moment}").touch()

    def is_at(self, moment):
        return (self.directory / f"reached-{moment}").exists()

    def let_go(self, moment):
        for file in (f"ask-{moment}", f"reached-{moment}"):
            (self.directory / file).unlink(missing_ok=True)


def swept_on(engine, directory):
    """Sweep on two hosts of a cluster under the faults; return the trials, the faults met and what was lost."""
    shared = directory / "work"
    shared.mkdir(parents=True)
    study = replace(STUDY, arguments=STUDY.arguments.replace("TRIALS", str(TRIALS)))
    met, lost = Counter(), set()
    with (
        Services() as services,
        Cluster(engine, services) as cluster,
        Node(0, directory / "a", services, "+1h", shared) as first,
        Node(1, directory / "b", services, "-0h", shared) as second,
    ):
        for place in (shared, first.directory, second.directory):
            study.write(place / "small.py")
        for node in (first, second):
            node.begin(cluster)
        cluster.wait_for((first, second))
        # The driver gives its length of a lease to the workers that it places.
        lease = {"SWEEPER_LEASE_SECONDS": str(LEASE)}
        env = {**services.environment, **lease, "SWEEPER_TEST_HOST": str(shared)}
        words = ("run", "small.py", "--engine", engine, "--engine-address", cluster.address)
        faults = list(FAULTS)
        for _ in range(2 * len(FAULTS)):
            with RunningCommand(*words, "--workers", 2, "-v", cwd=shared, env=env) as driver:
                assert driver.wait_for("trial 0") or faults != FAULTS, driver.err
                with Database.open(services.storage, create=False) as database:
                    while faults and _strike(faults[0], (first, second), driver, database, lost):
                        met[faults.pop(0)] += 1
                        if first.process.poll() is not None:
                            first.begin(cluster)
                        if second.process.poll() is not None:
                            second.begin(cluster)
                until(lambda: driver.process.poll() is not None, 5 * LIMIT)
                print(driver.end(), driver.err)
                if driver.process.returncode == 0:
                    break
                # What the engine has given up is placed again by another run.
                cluster.wait_for((first, second))
        with Database.open(services.storage, create=False) as database:
            trials = Repository(database).trials("small")
        return trials, met, {at: trials[at[0]].attempts[at[1] - 1].outcome for at in lost}


def _strike(fault, nodes, driver, database, lost):
    """Take a host or its link away where a trial is at the moment; return whether one was.

    The engine decides which host has trials.
    """
    kind, moment = fault
    for node in nodes:
        node.ask(moment)
    until(
        lambda: any(node.is_at(moment) for node in nodes) or driver.process.poll() is not None,
        LIMIT,
    )
    repository = Repository(database)
    struck = next((node for node in nodes if node.is_at(moment)), None)
    if struck is not None and kind == "host":
        struck.lose()
    elif struck is not None:
        before = closed_as_lost(database, repository, struck)
        struck.link(up=False)
        for node in nodes:
            if node is not struck:
                node.let_go(moment)
        time.sleep(2 * LEASE)
        # A worker of the other host finds the lease ended before its next claim, once the engine has placed one.
        until(lambda: closed_as_lost(database, repository, struck) - before, LIMIT / 3)
        lost |= closed_as_lost(database, repository, struck) - before
        struck.let_go(moment)
        struck.link(up=True)
    for node in nodes:
        node.let_go(moment)
    return struck is not None


@pytest.mark.chaos
@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_cluster_of_two_hosts_gives_the_sweep_of_one(engine, tmp_path):
    require_namespaces()
    trials, met, lost = swept_on(engine, tmp_path / "two")
    assert differing(alone(tmp_path / "one", TRIALS), results_of(trials)) == []
    outcomes = [[attempt.outcome for attempt in trial.attempts] for trial in trials]
    assert all(each.count("complete") == 1 and each[-1] == "complete" for each in outcomes)
    assert set(met) == set(FAULTS)
    assert any("lost" in each for each in outcomes)
    assert set(lost.values()) <= {"lost"}, "what was lost does not come back"
    assert len({a.host for trial in trials for a in trial.attempts}) == 2
