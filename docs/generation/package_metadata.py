"""Give the built package its addresses: `project.urls`, and absolute links in the README that the index shows.

The address of the repository is known where the package is built, and is written nowhere else: the workflow
that publishes sets ``SWEEPER_REPOSITORY`` to its own repository. A build without it, such as an installation from
a clone, has no addresses and the README as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)")


class PackageMetadata(MetadataHookInterface):
    """Hook that `pyproject.toml` names."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` and, if the repository's address is known, ``urls``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("SWEEPER_REPOSITORY", "").rstrip("/"):
            tag = f"v{metadata['version']}"
            text = with_absolute_links(text, repository, tag)
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/index.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose relative links lead to a repository: pictures to their bytes, others to their page.

    Args:
        text: Markdown.
        repository: Address of the repository, such as ``https://github.com/owner/name``.
        tag: Tag or branch of the linked files.
    """
    return _LINK.sub(
        lambda found: (
            f"{found[1]}{found[2]}({repository}/{'raw' if found[1] else 'blob'}/{tag}/{found[3]})"
        ),
        text,
    )
