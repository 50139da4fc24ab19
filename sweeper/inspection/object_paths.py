"""Path to an object in messages: `model.layers[2] 'trunk' → kernel`.

It is a path of attributes as one writes it in Python, or a phrase where Python has no notation:
`closure variable 'trunk' of build_model`. What is below a phrase, or below something that a name was
given to, comes after an arrow.
"""

from __future__ import annotations

from typing import NamedTuple

MODULE_ATTRIBUTE = "module attribute "
_CLASS_ATTRIBUTE = "class attribute "


class ObjectPath(NamedTuple):
    """Path to an object, in the user's terms.

    Attributes:
        text: The path.
        phrase: Whether it is words, so that nothing can be appended without an arrow.
        label: The name of what is there, shown only before what is inside it.
    """

    text: str
    phrase: bool = False
    label: str = ""

    def attribute(self, name: str) -> ObjectPath:
        """Return the path to an attribute of an object."""
        if self.label:
            return ObjectPath(f"{self.text} {self.label!r} → {name}")
        return ObjectPath(f"{self.text} → {name}" if self.phrase else f"{self.text}.{name}")

    def item(self, key: object, label: str = "") -> ObjectPath:
        """Return the path to an item of a list or a dict; ``label`` names the item."""
        shown = repr(key) if type(key) in (int, str, bool, type(None)) else "…"
        path = f"[{shown}]"
        if self.label:
            path = f" {self.label!r} → {path}"
        elif self.phrase:
            path = f" → {path}"
        return ObjectPath(f"{self.text}{path}", label=label)

    def argument(self, name: str) -> ObjectPath:
        """Return what a call of the method here was given."""
        return ObjectPath(f"{self.text}({name}=…)")

    def noted(self, what: str) -> ObjectPath:
        """Something here that has no name."""
        return ObjectPath(f"{what} of {self._bare()}", phrase=True)

    def closure(self, name: str) -> ObjectPath:
        """Return a variable of an enclosing function, or of a generator's frame."""
        return ObjectPath(f"closure variable {name!r} of {self._bare()}", phrase=True)

    def default(self, name: str) -> ObjectPath:
        """Return a parameter's default."""
        return ObjectPath(f"default argument {name!r} of {self._bare()}", phrase=True)

    def global_(self, name: str) -> ObjectPath:
        """Return a module variable that the function here uses."""
        return ObjectPath(f"global variable {name!r} of {self._bare()}", phrase=True)

    def given(self, name: str) -> ObjectPath:
        """Return an argument that a partial holds."""
        return ObjectPath(f"argument {name} of the partial {self._bare()}", phrase=True)

    def owner(self, kind: str) -> ObjectPath:
        """Return the object that the method here is bound to."""
        return ObjectPath(f"the {kind} that {self._bare()} is bound to", phrase=True)

    def cache(self) -> ObjectPath:
        """Return what a cached function has kept."""
        return ObjectPath(f"cache of {self._bare()}", phrase=True)

    def of_class(self) -> ObjectPath:
        """Return the class here, for what are its attributes."""
        if self.text.startswith(MODULE_ATTRIBUTE):
            return ObjectPath(_CLASS_ATTRIBUTE + self._bare(), self.phrase)
        return self

    def _bare(self) -> str:
        return self.text.removeprefix(MODULE_ATTRIBUTE).removeprefix(_CLASS_ATTRIBUTE)
