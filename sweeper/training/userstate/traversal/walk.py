"""The walk from what the factories gave to every object that can hold state, each once.

What leads where is decided by `edges`; here each object gets its path and its holder. The order is
that in which the user's code set things, which is the same in every process, and so are the paths:
what is captured in one process finds its place in another by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.walk import MOST, Edge, UsedVariable, walk
from sweeper.training.userstate.holders.bindings import ModuleVariables
from sweeper.training.userstate.holders.objects import Holder, Structure
from sweeper.training.userstate.holders.positions import IteratorState
from sweeper.training.userstate.traversal.edges import Reached, reach


@dataclass(slots=True)
class Node:
    """An object that was there as training began.

    Attributes:
        path: Unique among all nodes.
        holder: What it holds; None for an object that can only be referred to.
    """

    thing: Any
    path: str
    holder: Holder | None


class Walk:
    """Everything that was reached, by identity and by path.

    Args:
        covered: Ids of the variables that other components capture.
        exempt: Ids of objects that only write; nothing in them is looked at.
    """

    def __init__(self, covered: frozenset[int], exempt: frozenset[int]) -> None:
        self.nodes: dict[int, Node] = {}
        self.by_path: dict[str, Node] = {}
        self.cut = False
        self._covered = covered
        self._exempt = exempt
        self._modules: dict[int, ModuleVariables] = {}

    @property
    def holders(self) -> list[Holder]:
        """All holders, in the order of the walk."""
        found = [node.holder for node in self.nodes.values() if node.holder is not None]
        return [*found, *self._modules.values()]

    @property
    def modules(self) -> list[ModuleVariables]:
        """The modules with variables that the code on the way uses."""
        return list(self._modules.values())

    def module(self, name: str) -> ModuleVariables | None:
        """The variables of the module of that name, by its path."""
        return next((m for m in self._modules.values() if m.path == name), None)

    def visit(
        self, roots: Iterable[tuple[ObjectPath, Any]], used: set[tuple[int, str]] | None = None
    ) -> set[int]:
        """Walk from ``roots``; return the ids of all that they lead to, known before or not.

        Args:
            roots: Where to begin.
            used: Receives the module variables that the code on the way uses: the id of their
                holder, and their name.
        """
        seen: set[int] = set()

        def look(edge: Edge, _: int) -> Iterable[Edge] | None:
            key = id(edge.thing)
            if len(self.nodes) >= MOST:
                self.cut = True
                return None
            seen.add(key)
            if key in self._exempt:
                self._add(edge, None)
                return None
            reached = reach(edge, self._covered)
            if reached is None:
                return None
            if key not in self.nodes and reached.named:
                self._add(edge, reached.holder)
            for variable in reached.variables:
                holder = self._use(variable)
                seen.add(id(holder))
                if used is not None:
                    used.add((id(holder), variable.name))
            return self._inside(edge, reached)

        walk([Edge(where, thing) for where, thing in roots], look)
        return seen

    def reached_from(self, path: str, thing: Any, used: set[tuple[int, str]]) -> set[int]:
        """The ids of all that ``thing`` leads to; ``used`` as in `visit`. Nothing is added."""
        nodes, by_path = self.nodes, self.by_path
        self.nodes, self.by_path = dict(nodes), dict(by_path)
        try:
            return self.visit([(ObjectPath(path), thing)], used)
        finally:
            self.nodes, self.by_path = nodes, by_path

    def begin(self) -> None:
        """Remember everything as it is now."""
        iterators = {
            id(node.thing): node.holder
            for node in self.nodes.values()
            if isinstance(node.holder, IteratorState)
        }
        for holder in self.holders:
            holder.begin()
            if isinstance(holder, Structure) and iterators:
                held = (iterators.get(id(value)) for value in holder.values)
                holder.iterators = [each for each in held if each is not None]

    def _add(self, edge: Edge, holder: Holder | None) -> None:
        path = edge.path.text
        count = 2
        while path in self.by_path:
            path = f"{edge.path.text} ({count})"
            count += 1
        if holder is not None:
            holder.path = path
        node = Node(edge.thing, path, holder)
        self.nodes[id(edge.thing)] = node
        self.by_path[path] = node

    def _use(self, variable: UsedVariable) -> ModuleVariables:
        known = self._modules.get(id(variable.module))
        if known is None:
            path = f"module {_variables_of(variable).get('__name__', '__main__')}"
            if any(other.path == path for other in self._modules.values()):
                path = f"{path} ({len(self._modules)})"
            known = ModuleVariables(variable.module, path)
            self._modules[id(variable.module)] = known
        known.names.setdefault(variable.name)
        return known

    def _inside(self, edge: Edge, reached: Reached) -> list[Edge]:
        inside = list(reached.edges)
        for variable in reached.variables:
            own = _variables_of(variable)
            if variable.name in own:
                where = ObjectPath(f"{self._modules[id(variable.module)].path}.{variable.name}")
                inside.append(Edge(where, own[variable.name]))
        if isinstance(reached.holder, Structure) and reached.follow:
            inside += _contents(edge.path, reached.holder)
        # A layer's name may be one that Keras made up, and another in the next process.
        return [each._replace(path=each.path._replace(label="")) for each in inside]


def _variables_of(variable: UsedVariable) -> dict[str, Any]:
    return variable.module if isinstance(variable.module, dict) else vars(variable.module)


def _contents(where: ObjectPath, holder: Structure) -> list[Edge]:
    keys, values = holder.read()
    if holder.shape == "named":
        return [Edge(where.attribute(k), v) for k, v in zip(keys, values, strict=True)]
    if holder.shape == "keyed":
        found = [Edge(where.item(k), v) for k, v in zip(keys, values, strict=True)]
        return found + [Edge(where.noted("a key"), k) for k in keys]
    return [Edge(where.item(i), v) for i, v in enumerate(values)]
