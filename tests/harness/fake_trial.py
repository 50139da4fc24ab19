"""A trial process without TensorFlow: it says what a real one says, and trains a chain of digests.

Run as ``python fake_trial.py DESCRIPTOR PACE STEP``. With a step it has few parameters, and proposes them. Its "weights" after an epoch are a hash of those before,
so a trial that lost, repeated or mixed up an epoch anywhere ends with another digest. It imports
nothing of sweeper's, so that it starts in some hundredths of a second.
"""

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

STEPS = 7


def chained(digest, epoch, x):
    return hashlib.sha256(f"{digest} {epoch} {x!r}".encode()).hexdigest()


def value_of(digest):
    return int(digest[:8], 16) / 2**32


class Stopped(Exception):  # noqa: N818 - an outcome
    """The worker said to stop."""


class Trial:
    def __init__(self, connection, assignment):
        self.connection = connection
        self.assignment = assignment
        self.directory = Path(assignment["checkpoints"][-1])
        self.pace = float(sys.argv[2])
        self.step = float(sys.argv[3]) or None

    def send(self, kind, **fields):
        self.connection.send_bytes(json.dumps({"kind": kind, **fields}).encode())

    def receive(self):
        received = json.loads(self.connection.recv_bytes())
        if received["kind"] == "Stop":
            raise Stopped
        return received

    def ask(self, name, low, high):
        distribution = {
            "kind": "FloatRange", "low": low, "high": high, "log": False, "step": self.step
        }  # fmt: skip
        self.send("Suggest", name=name, distribution=distribution)
        return float(self.receive()["value"])

    def newest(self):
        """The losses so far and the digest after them, from whichever attempt came furthest.

        And where that is kept; None where it is not the trial's own.
        """
        candidates = [
            {**json.loads(file.read_text()), "own": file}
            for directory in self.assignment["checkpoints"]
            for file in Path(directory).glob("epoch-*.json")
        ]
        best = max(candidates, key=lambda c: len(c["losses"]), default={"losses": [], "digest": ""})
        return best["losses"], best["digest"], best.get("own")

    def keep(self, losses, digest):
        epoch = len(losses)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"epoch-{epoch}.json"
        writing = path.with_suffix(".part")
        writing.write_text(json.dumps({"losses": losses, "digest": digest}))
        writing.rename(path)
        self.tell_checkpoint(path, epoch, digest)

    def tell_checkpoint(self, path, epoch, digest):
        self.send(
            "CheckpointCommitted",
            step=epoch * STEPS, epoch=epoch, digest=digest[:32], bytes=1, path=str(path),
        )  # fmt: skip

    def wait(self, seconds):
        """Train; the end of the pipe means that the worker is gone."""
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0:
            if self.connection.poll(remaining):
                self.receive()

    def run(self):
        losses, digest, resumed_from = self.newest()
        epochs = self.assignment["settings"]["epochs"]
        pause = self.assignment.get("pause_after")
        try:
            x = self.ask("x", 0.0, 1.0)
            if self.step is not None and not losses:
                self.send("Propose")
                if not self.receive()["value"]:
                    self.send("StoppedHere", step=0)
                    return
            pauses = random.Random(self.assignment["number"])
            lengths = [pauses.lognormvariate(0, 0.5) for _ in range(epochs)]
            start_epoch = len(losses)
            self.send(
                "Started",
                start_step=start_epoch * STEPS,
                start_epoch=start_epoch,
                steps_per_epoch=STEPS,
            )
            # What the database may lack, if a worker died before it wrote it down.
            if resumed_from is not None:
                self.tell_checkpoint(resumed_from, start_epoch, digest)
            self.tell_epochs(losses, range(start_epoch), None)
            for epoch in range(start_epoch, epochs if pause is None else pause):
                self.wait(self.pace * lengths[epoch])
                digest = chained(digest, epoch, x)
                losses.append(value_of(digest))
                self.tell_epochs(losses, [epoch], 0.0)
                self.keep(losses, digest)
        except Stopped:
            self.send("StoppedHere", step=len(losses) * STEPS)
            return
        if pause is not None:
            self.send(
                "Finished", outcome="paused", step=pause * STEPS, epochs=pause, value=losses[-1],
                digest=digest[:32],
            )  # fmt: skip
            return
        self.send("Finished", step=epochs * STEPS, value=losses[-1], digest=digest[:32])

    def tell_epochs(self, losses, which, seconds):
        records = [{"epoch": epoch, "metrics": {"loss": losses[epoch]}} for epoch in which]
        if records:
            self.send("EpochsEnded", epochs=records, step=len(losses) * STEPS, seconds=seconds)


def main():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    connection = Connection(int(sys.argv[1]))
    try:
        Trial(connection, json.loads(connection.recv_bytes())).run()
    except (EOFError, OSError):
        os._exit(75)


if __name__ == "__main__":
    main()
