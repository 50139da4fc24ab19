"""The site builds without a warning, every link in it resolves, and it needs no network to be read."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import source_pages
from doc_blocks import ROOT

EXTERNAL = re.compile(r"(?:https?:)?//")


def build(configuration, site):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", configuration, "-d", site],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site."""
    directory = tmp_path_factory.mktemp("site")
    process = build(ROOT / "mkdocs.yml", directory)
    assert process.returncode == 0, process.stderr
    return directory


class Loaded(HTMLParser):
    """What a page has a browser load by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(attributes.get("src") or "")
        elif tag == "link" and attributes.get("rel") != "canonical":
            self.found.append(attributes.get("href") or "")


def loaded_from_elsewhere(html):
    parser = Loaded()
    parser.feed(html)
    return [address for address in parser.found if EXTERNAL.match(address)]


@pytest.mark.pages
def test_the_site_is_built_and_has_each_part(site):
    home = (site / "index.html").read_text()
    for section in ("Tutorial", "How-to guides", "Reference", "Explanation"):
        assert section in home
    assert not (site / "dev").exists()
    study = (site / "reference" / "python.html").read_text()
    assert "failing_alike" in study
    assert "--accept-inexact" in (site / "reference" / "command-line.html").read_text()
    assert "SWEEPER_LEASE_SECONDS" in (site / "reference" / "settings.html").read_text()
    assert "sweeper_attempts" in (site / "reference" / "database.html").read_text()


@pytest.mark.pages
def test_the_site_is_read_without_a_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    sources = {page.name: loaded_from_elsewhere(page.read_text()) for page in pages}
    assert {name: addresses for name, addresses in sources.items() if addresses} == {}


def test_control_what_is_loaded_from_elsewhere_is_seen():
    html = '<script src="https://cdn.example/x.js"></script><img src="own.png">'
    assert loaded_from_elsewhere(html) == ["https://cdn.example/x.js"]


def test_a_link_to_a_page_for_developers_leads_to_the_repository_or_is_text():
    text = "[figures](../dev/figures.md#a) and [guides](../how-to/index.md)"
    linked = "[figures](https://host.example/blob/v1/docs/dev/figures.md#a) and [guides](../how-to/index.md)"
    assert source_pages.for_users(text, "https://host.example/blob/v1") == linked
    assert source_pages.for_users(text, "") == "figures and [guides](../how-to/index.md)"


TO_NOTHING = {
    "[there](gone.md)": "gone.md",
    "[there](other.md#gone)": "does not contain an anchor '#gone'",
    "[there](/absolute.md)": "absolute",
}
"""Links, and what is said of each."""


def test_control_links_to_nothing_are_warnings_and_end_the_build(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("\n\n".join(["# Home", *TO_NOTHING]))
    (docs / "other.md").write_text("# Other\n\n[home](index.md)\n")
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {docs}\nhooks: []\nplugins: []\n"
        "theme:\n  name: mkdocs\n  features: null\n  palette: null\n"
    )
    process = build(configuration, tmp_path / "site")
    assert process.returncode == 1
    warned = [line for line in process.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warned) == len(TO_NOTHING), process.stderr
    for message in TO_NOTHING.values():
        assert any(message in line for line in warned), message
