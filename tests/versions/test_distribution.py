"""The wheel and the source distribution install in clean environments and pass the fast tests."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    "tests/support/test_installation.py::"
    "test_a_dependency_is_one_that_sweeper_imports_or_that_a_sampler_needs"
)
"""The test that reads the sources, which are not there."""

UV = (sys.executable, "-m", "uv")
REPOSITORY = "https://example.org/owner/name"

FAST = ("db", "declarations", "inspection", "search", "support")

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]


def command(*words, cwd, **variables):
    """Run a command to its end; return what it printed."""
    inherited = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=inherited | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Directory of the wheel and the sdist, built from a clean copy of what git has."""
    clone = tmp_path_factory.mktemp("clone")
    dist = tmp_path_factory.mktemp("dist")
    command("git", "clone", "--quiet", ROOT, clone / "it", cwd=ROOT)
    build(clone / "it", dist, SWEEPER_REPOSITORY=REPOSITORY)
    return dist


def build(tree, directory, **variables):
    command(*UV, "build", "--quiet", "--out-dir", directory, cwd=tree, **variables)


def metadata_of(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_the_index_is_given_addresses_where_the_repository_is_known(built, tmp_path):
    metadata = metadata_of(built)
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
    assert urls["Repository"] == REPOSITORY
    assert urls["Issues"] == f"{REPOSITORY}/issues"
    readme = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    picture = next(link for link in links if link.endswith(".svg"))
    assert picture == f"{REPOSITORY}/raw/v{metadata['Version']}/docs/pictures/kill-and-resume.svg"

    build(ROOT, tmp_path / "dist")  # control: no address
    metadata = metadata_of(tmp_path / "dist")
    assert metadata.get_all("Project-URL") is None
    assert "](docs/pictures/kill-and-resume.svg)" in str(metadata.get_payload())


def unpacked(built, directory):
    (sdist,) = built.glob("*.tar.gz")
    shutil.unpack_archive(sdist, directory)
    (tree,) = directory.iterdir()
    return tree


def environment(requirement, directory):
    """Make an environment with the requirement and its ``test`` extra; return its interpreter."""
    command(*UV, "venv", "--quiet", directory, cwd=ROOT)
    python = directory / "bin" / "python"
    package = f"{requirement}[test]"
    command(*UV, "pip", "install", "--quiet", "--python", python, package, cwd=ROOT)
    return python


def pass_the_fast_tests(python, tree):
    tests = [f"tests/{directory}" for directory in FAST]
    output = command(python, "-m", "pytest", "-q", *tests, "--deselect", SOURCES, cwd=tree)
    assert " passed" in output
    assert " failed" not in output


def test_the_wheel_passes_the_fast_tests(built, tmp_path):
    tree = unpacked(built, tmp_path / "sources")
    shutil.rmtree(tree / "sweeper")  # what is tested is what the wheel installed
    (wheel,) = built.glob("*.whl")
    python = environment(wheel, tmp_path / "environment")

    output = command(python, "-c", "import sweeper; print(sweeper.__file__)", cwd=tree)
    assert "site-packages" in output
    pass_the_fast_tests(python, tree)
    output = command(python.parent / "sweeper", "init", "first.py", cwd=tmp_path)
    assert "first.py" in output


def test_the_sdist_is_complete_and_passes_the_fast_tests(built, tmp_path):
    tree = unpacked(built, tmp_path / "sources")
    for name in ("README.md", "LICENSE", "docs", "benchmarks", "studies", "examples", "tests"):
        assert (tree / name).exists(), name
    pass_the_fast_tests(environment(tree, tmp_path / "environment"), tree)
