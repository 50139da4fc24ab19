"""How a place is called in messages: `model.layers[2] 'trunk' → kernel`.

A place is a path of attributes as one writes it in Python, or a phrase where Python has no notation:
`closure variable 'trunk' of build_model`. What is below a phrase, or below something that a name was
given to, comes after an arrow.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MODULE_ATTRIBUTE", "Place"]

MODULE_ATTRIBUTE = "module attribute "
_CLASS_ATTRIBUTE = "class attribute "


class Place(NamedTuple):
    """Where something is.

    Attributes:
        text: The place.
        phrase: Whether it is words, so that nothing can be appended without an arrow.
        label: The name of what is there, told only before what is inside it.
    """

    text: str
    phrase: bool = False
    label: str = ""

    def attribute(self, name: str) -> Place:
        """Of an object."""
        if self.label:
            return Place(f"{self.text} {self.label!r} → {name}")
        return Place(f"{self.text} → {name}" if self.phrase else f"{self.text}.{name}")

    def item(self, key: object, label: str = "") -> Place:
        """Of a list or a dict; ``label`` names the item."""
        told = repr(key) if type(key) in (int, str, bool, type(None)) else "…"
        place = f"[{told}]"
        if self.label:
            place = f" {self.label!r} → {place}"
        elif self.phrase:
            place = f" → {place}"
        return Place(f"{self.text}{place}", label=label)

    def argument(self, name: str) -> Place:
        """What a call of the method here was given."""
        return Place(f"{self.text}({name}=…)")

    def noted(self, what: str) -> Place:
        """Something here that has no name."""
        return Place(f"{what} of {self._bare()}", phrase=True)

    def closure(self, name: str) -> Place:
        """A variable of an enclosing function, or of a generator's frame."""
        return Place(f"closure variable {name!r} of {self._bare()}", phrase=True)

    def default(self, name: str) -> Place:
        """A parameter's default."""
        return Place(f"default argument {name!r} of {self._bare()}", phrase=True)

    def global_(self, name: str) -> Place:
        """A module variable that the function here uses."""
        return Place(f"global variable {name!r} of {self._bare()}", phrase=True)

    def given(self, name: str) -> Place:
        """An argument that a partial holds."""
        return Place(f"argument {name} of the partial {self._bare()}", phrase=True)

    def owner(self, kind: str) -> Place:
        """The object that the method here is bound to."""
        return Place(f"the {kind} that {self._bare()} is bound to", phrase=True)

    def cache(self) -> Place:
        """What a cached function has kept."""
        return Place(f"cache of {self._bare()}", phrase=True)

    def of_class(self) -> Place:
        """The class here, for what are its attributes."""
        if self.text.startswith(MODULE_ATTRIBUTE):
            return Place(_CLASS_ATTRIBUTE + self._bare(), self.phrase)
        return self

    def _bare(self) -> str:
        return self.text.removeprefix(MODULE_ATTRIBUTE).removeprefix(_CLASS_ATTRIBUTE)
