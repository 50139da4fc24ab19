"""What MkDocs calls while it builds the site: pages made from the code are added, and the order set.

Nothing that they say is kept in a file beside the code, so nothing of it can grow old.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import command_line_page
import database_page
import errors_page
import settings_page
import source_pages
from mkdocs.structure.files import File, Files
from navigation import LISTED, navigation, with_every_page

from sweeper.support.installation import VERSION

ROOT = Path(__file__).parents[2]

GENERATED = {
    "reference/command-line.md": command_line_page.page,
    "reference/settings.md": settings_page.page,
    "reference/database.md": database_page.page,
    "reference/errors-and-exit-codes.md": errors_page.page,
}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and a page for each file outside of ``docs/`` that a page links to."""
    for uri, page in GENERATED.items():
        files.append(File.generated(config, uri, content=page()))
    texts = [file.content_string for file in files.documentation_pages()]
    for path in source_pages.linked_from(texts, ROOT):
        text = source_pages.page(ROOT, path)
        files.append(File.generated(config, source_pages.uri(path), content=text))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    config.nav = navigation(pages)
    config.extra["pages"] = pages
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Complete the lists of pages; have links that lead out of ``docs/`` lead to the pages of those files."""
    section, _, name = page.file.src_uri.partition("/")
    if section in LISTED and name == "index.md":
        markdown = with_every_page(markdown, section, config.extra["pages"])
    markdown = source_pages.for_users(markdown, _repository())
    return source_pages.redirected(markdown, page.file.src_uri, ROOT)


def _repository() -> str:
    """Return the address of this version's files, which the workflow that publishes knows, or an empty string."""
    address = os.environ.get("SWEEPER_REPOSITORY", "").rstrip("/")
    return address and f"{address}/blob/v{VERSION}"
