"""One warm process that runs trials one after another, a trial for each line that it reads.

Usage: ``python benchmarks/warm_process.py STUDY inline|bare``. ``inline`` does between trials what
``isolation="inline"`` does (a cleared Keras session, a garbage collection); ``bare`` does nothing,
and lets the process grow.
"""

from __future__ import annotations

import gc
import os
import sys
import time

import keras
from pydantic import TypeAdapter

from sweeper.definition.loading import load_definition
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Answered, Assignment, Judge, Message, Propose, Suggest
from sweeper.run.trial.run import run_trial
from sweeper.support.tensorflow_start import configure_tensorflow, import_tensorflow


class Deaf(Link):
    """A link whose worker always answers 0.001 and hears nothing."""

    def send(self, message: Message) -> None:
        del message

    def ask(self, question: Suggest | Judge | Propose) -> Answered:
        return Answered(0.001 if isinstance(question, Suggest) else isinstance(question, Propose))

    def stop_requested(self) -> bool:
        return False


def main() -> None:
    import_tensorflow()
    configure_tensorflow(threads=1, deterministic=True)
    definition = load_definition(sys.argv[1])
    for line in sys.stdin:
        assignment = TypeAdapter(Assignment).validate_json(line)
        started = time.perf_counter()
        if sys.argv[2] == "inline":
            keras.backend.clear_session()
            gc.collect()
        run_trial(definition, assignment, Deaf())
        os.write(1, f"{time.perf_counter() - started}\n".encode())


if __name__ == "__main__":
    main()
