"""Shortened trials in this process, over a link that answers by itself: no server, no fork, no database."""

from dataclasses import dataclass, field

from sweeper.declarations.space import Categorical
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Answered, Judge, Message, Propose

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
        if isinstance(question, Judge | Propose):
            return Answered(isinstance(question, Propose))
        asked = question.distribution
        return Answered(asked.choices[0] if isinstance(asked, Categorical) else asked.low)

    def stop_requested(self):
        return False
