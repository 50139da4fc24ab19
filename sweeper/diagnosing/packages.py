"""Installed packages, and whether their versions are supported."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from sweeper.installation import DISTRIBUTION, VERSION, install_command
from sweeper.records.diagnoses import Finding

_LEAST_PYTHON = (3, 11)
_NO_EXTRA = "test"
"""What only the tests need."""

Installed = Callable[[str], str | None]
"""The version of an installed package; None where it is not installed."""


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def package_findings(installed: Installed = installed_version) -> Iterator[Finding]:
    """Look at Python, sweeper, what it requires, and its extras.

    Args:
        installed: Gives packages' versions.
    """
    python = platform.python_version()
    least = ".".join(map(str, _LEAST_PYTHON))
    yield Finding(
        "packages",
        "Python",
        "ok" if sys.version_info >= _LEAST_PYTHON else "broken",
        f"{python} ({sys.executable})",
        f"{least} or newer",
        "" if sys.version_info >= _LEAST_PYTHON else "make an environment of a newer Python",
    )
    yield Finding("packages", "sweeper", "ok", VERSION, "any version")
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        texts = []
    required = [Requirement(text) for text in texts]
    if not required:
        yield Finding(
            "packages",
            "requirements",
            "note",
            f"{DISTRIBUTION} is not installed, but run from its files",
            "an installed package, which says the versions that it needs",
            install_command(),
        )
    for requirement in required:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _requirement(requirement, installed)
    yield from _extras(required, installed)


def _requirement(requirement: Requirement, installed: Installed) -> Finding:
    found = installed(requirement.name)
    fits = found is not None and Version(found) in requirement.specifier
    return Finding(
        "packages",
        requirement.name,
        "ok" if fits else "broken",
        found or "not installed",
        str(requirement.specifier) or "any version",
        "" if fits else install_command("", f"{requirement.name}{requirement.specifier}"),
    )


def _extras(required: Sequence[Requirement], installed: Installed) -> Iterator[Finding]:
    """An extra a line: there, in part, or not; none is needed by every study."""
    names = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") if required else None
    for extra in names or ():
        if extra == _NO_EXTRA:
            continue
        wanted = [r for r in required if r.marker and r.marker.evaluate({"extra": extra})]
        wanted = [r for r in wanted if not (r.marker and r.marker.evaluate({"extra": ""}))]
        lacking = [r.name for r in wanted if installed(r.name) is None]
        misfits = [
            f"{r.name} {found}"
            for r in wanted
            if (found := installed(r.name)) is not None and Version(found) not in r.specifier
        ]
        seen = ", ".join([f"without {', '.join(lacking)}"] * bool(lacking) + misfits) or ", ".join(
            f"{r.name} {installed(r.name)}" for r in wanted
        )
        yield Finding(
            "packages",
            f"[{extra}]",
            "note" if misfits else "ok",
            seen if not lacking else f"not installed ({seen})",
            ", ".join(f"{r.name}{r.specifier}" for r in wanted) + "; needed by none but its users",
            install_command(extra) if lacking or misfits else "",
        )
