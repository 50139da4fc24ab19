"""How a module of `sweeper.cli` offers its verbs, so that adding one takes one new file.

`sweeper.cli.main` imports every module of this package and registers the ``GROUP`` it finds.
A module with verbs therefore imports at its top only what is quick to import, and the rest in the
bodies of its functions.
"""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Invocation", "Verb", "VerbGroup"]

Verb = Callable[..., None]
"""A function with typer's annotations. Its name is the verb, its docstring the help."""


@dataclass(frozen=True)
class VerbGroup:
    """Verbs that the help shows together.

    Attributes:
        title: The heading above them.
        order: Groups are shown by rising order.
        verbs: The functions, in the order of the help.
        under: A word that comes before each verb, as in ``sweeper db upgrade``; empty for none.
    """

    title: str
    order: int
    verbs: tuple[Verb, ...]
    under: str = ""


@dataclass
class Invocation:
    """What one command line sets beyond its verb's own options.

    Attributes:
        debug: Whether an unexpected error prints its traceback.
    """

    debug: bool = False
