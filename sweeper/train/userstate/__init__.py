"""State of the user's objects: walk, comparison, capture and restore.

A walk (`walk`) starts at the objects that the factories returned, follows attributes, containers,
closures, classes and module variables, and creates a holder for each object with state. When training
begins, each holder records its contents. A checkpoint has the holders whose contents have changed.
Objects that existed when training began are referred to by their paths, which are the same in every
process.
"""

from sweeper.train.userstate.component import UserState
from sweeper.train.userstate.walk import Roots

__all__ = ["Roots", "UserState"]
