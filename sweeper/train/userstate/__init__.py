"""State of the user's objects: walk, comparison, capture and restore."""

from sweeper.train.userstate.component import UserState
from sweeper.train.userstate.walk import EarlierTraining, Roots

__all__ = ["EarlierTraining", "Roots", "UserState"]
