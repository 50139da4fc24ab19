"""Shortened trials in this process, over a link that answers by itself: no server, no fork, no database."""

import gc
import sys
from dataclasses import dataclass, field

from corpus import forget_modules
from scripted_trials import assignment_in

from sweeper.definition.loading import load_definition
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Answered, Failed, Judge, Message, Replay
from sweeper.run.trial.link import failure_of
from sweeper.run.trial.run import run_trial
from sweeper.spec.space import Categorical
from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything

PLAIN = """
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
return model
"""
"""For a study's text whose network is not what is tested: one layer, which is traced soonest."""

EAGER = PLAIN.replace("))\n", "), run_eagerly=True)\n")
"""The same without a graph, for a few steps."""

UNVALIDATED = "return Data(train=(x, y), batch_size=8)"
"""As data of such a study."""


@dataclass
class Answering(Link):
    """A trial's link whose worker gives the first choice or the lowest number, and keeps what it is sent."""

    messages: list[Message] = field(default_factory=list)

    def send(self, message):
        self.messages.append(message)

    def ask(self, question):
        if isinstance(question, Judge):
            return Answered(False)
        asked = question.distribution
        return Answered(asked.choices[0] if isinstance(asked, Categorical) else asked.low)

    def stop_requested(self):
        return False


def trained(file, directory):
    """What a shortened trial of the study in ``file`` reports; its files go below ``directory``."""
    import keras

    before, link = set(sys.modules), Answering()
    seed_everything(IMPORT_SEED)
    try:
        definition = load_definition(str(file))
        settings = definition.settings()
        (directory / "attempt-01").mkdir(parents=True, exist_ok=True)
        assignment = assignment_in(
            directory / "attempt-01",
            name=settings.name,
            seed=settings.seed,
            epochs=min(3, settings.epochs),
            objective=settings.objective,
            files=str(directory / "files"),
            order=Replay(None, short=True),
        )
        try:
            run_trial(definition, assignment, link)
        except Exception as error:
            # The frame of this file would count as the user's.
            trace = error.__traceback__ and error.__traceback__.tb_next
            link.send(failure_of(error.with_traceback(trace)))
    finally:
        forget_modules(before, file.parent)
        keras.backend.clear_session(free_memory=False)
        gc.unfreeze()
    return link.messages


def failure(file, directory):
    """The error that ends a shortened trial of the study in ``file``."""
    last = trained(file, directory)[-1]
    assert isinstance(last, Failed), last
    return last
