"""What the public docstrings leave out, read as the site reads them: without importing what they are of."""

import functools
from pathlib import Path

import griffe
from doc_blocks import Block

import sweeper

ROOT = Path(__file__).parents[2]

FURTHER = (
    "sweeper.records.code.CodeGroup",
    "sweeper.definition.definition.StudyDefinition",
    "sweeper.records.exactness.AuditRecord",
    "sweeper.records.exactness.AuditedDifference",
    "sweeper.records.exactness.Exactness",
    "sweeper.records.exactness.VerificationRecord",
    "sweeper.records.results.WorkerRecord",
    "sweeper.train.step.StepValues",
)
"""What public names lead to, and whoever reads a result or replaces a part sees."""

_NOT_EXPLAINED = ("to_json", "error", "finished")


@functools.cache
def loaded():
    """The package, read from its files."""
    return griffe.load("sweeper", search_paths=[ROOT])


def public_paths():
    """Of every public name, and of what it leads to, the path in the package."""
    modules = {name: getattr(sweeper, name).__module__ for name in sweeper.__all__}
    return sorted({*(f"{modules[name]}.{name}" for name in sweeper.__all__), *FURTHER})


def public_object(path):
    """What is there."""
    return loaded()[path.removeprefix("sweeper.")]


def described(thing, *kinds):
    """The names that sections of these kinds in the docstring of ``thing`` describe."""
    if thing.docstring is None:
        return set()
    names = set()
    for section in thing.docstring.parse("google", warnings=False):
        if section.kind.value in kinds:
            for entry in section.value:
                if entry.description.strip():
                    names |= {name.strip() for name in entry.name.split(",")}
    return names


def has_example(thing):
    """Whether the docstring of ``thing`` has an example that can be run."""
    if thing.docstring is None:
        return False
    sections = thing.docstring.parse("google", warnings=False)
    return any(
        section.kind.value == "examples" and ">>> " in _code(section) for section in sections
    )


def examples():
    """The examples in the docstrings of the whole package, of public names and of others."""
    for thing in _documented(loaded()):
        for section in thing.docstring.parse("google", warnings=False):
            if section.kind.value == "examples":
                yield Block(thing.path, thing.lineno or 1, "pycon", _code(section))


def _documented(thing):
    """What has a docstring in ``thing``, itself included."""
    if thing.docstring is not None:
        yield thing
    for member in thing.members.values():
        if not member.is_alias and not member.is_attribute:
            yield from _documented(member)


def undescribed(thing):
    """The arguments and attributes of ``thing`` that no text describes."""
    if thing.is_function:
        yield from _arguments(thing, described(thing, "parameters"))
        return
    described_names = described(thing, "parameters", "attributes")
    if thing.has_labels("dataclass"):
        for name, member in thing.members.items():
            if _is_field(name, member) and name not in described_names and member.docstring is None:
                yield f"{thing.path}.{name}"
    elif "__init__" in thing.members:
        yield from _arguments(thing.members["__init__"], described_names)
    if thing.name == "TrainingStep":
        # Its parts take and give those, as its own text says.
        described_names = described(thing.parent["StepValues"], "attributes") | {"values"}
    else:
        described_names = set()
    for name, member in thing.members.items():
        if member.is_function and not name.startswith("_") and name not in _NOT_EXPLAINED:
            yield from _arguments(member, described(member, "parameters") | described_names)


def _arguments(function, described_names):
    for parameter in function.parameters:
        if parameter.name not in ("self", "cls") and parameter.name not in described_names:
            yield f"{function.path}({parameter.name})"


def _is_field(name, member):
    return (
        member.is_attribute
        and not name.startswith("_")
        and member.annotation is not None
        and not member.has_labels("property")
    )


def _code(section):
    return "\n".join(text for _, text in section.value)
