"""State of the user's objects: walk, comparison, capture and restore.

One walk (`walk`) goes from everything that the factories gave through attributes, containers,
closures, classes and module variables, and makes a holder of each object that can hold state. As
training begins each holder remembers its contents; at a checkpoint those that have changed are
captured, in the terms of the objects that were there at the beginning, which a fresh process has
again in the same places.
"""

from sweeper.train.userstate.component import UserState
from sweeper.train.userstate.walk import Roots

__all__ = ["Roots", "UserState"]
