"""Pages for files outside of ``docs/``, so that a link to one resolves here as it does in the repository.

Pages in ``docs/dev/`` are for people who work on sweeper, and are read in the repository only.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

_LINK = re.compile(r"\]\(((?:\.\./)+)([A-Za-z][\w./-]*)(#[\w-]+)?\)")
_LINK_FOR_DEVELOPERS = re.compile(r"\[([^\]]+)\]\((?:\.\./)*(dev/[^)]*)\)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sbatch": "bash", ".toml": "toml", ".sh": "bash"}


def linked_from(texts: Iterable[str], root: Path) -> list[str]:
    """The files of the repository that any of ``texts`` links to, outside of ``docs/``."""
    found = {link[2] for text in texts for link in _LINK.finditer(text)}
    return sorted(path for path in found if _is_outside(path, root))


def uri(path: str) -> str:
    """Where the page of the file ``path`` is."""
    return f"source/{path}.md"


def page(root: Path, path: str) -> str:
    """The page of the file ``path``."""
    file = root / path
    text = file.read_text()
    if file.suffix == ".md":
        return re.sub(r"\]\((?!https?:|#)[^)]*\)", "]", text)
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def redirected(markdown: str, source: str, root: Path) -> str:
    """The text of the page ``source``, its links to files outside of ``docs/`` led to their pages."""

    def link(found: re.Match[str]) -> str:
        path = found[2]
        if not _is_outside(path, root) or found[1].count("/") != source.count("/") + 1:
            return found[0]
        target = posixpath.relpath(uri(path), posixpath.dirname(source) or ".")
        return f"]({target}{found[3] or ''})"

    return _LINK.sub(link, markdown)


def for_users(markdown: str, repository: str) -> str:
    """The text of a page, its links to pages for developers led to the repository.

    Args:
        markdown: The text.
        repository: Address of the repository's files; if it is empty, the links' texts remain.
    """
    linked = rf"[\1]({repository}/docs/\2)" if repository else r"\1"
    return _LINK_FOR_DEVELOPERS.sub(linked, markdown)


def _is_outside(path: str, root: Path) -> bool:
    return not (root / "docs" / path).exists() and (root / path).is_file()
