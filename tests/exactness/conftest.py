"""One test for each study of the groups of a file."""

import pytest
from exactness_list import BY_DEFAULT, studies_of
from exactness_verdicts import ALL_KILLS


def pytest_generate_tests(metafunc):
    """Give ``part`` each study of the groups that the test's module names in ``GROUPS``."""
    if "part" in metafunc.fixturenames:
        parts = [part for group in metafunc.module.GROUPS for part in studies_of(group)]
        whole = [
            pytest.param(part, ALL_KILLS, id=f"{part.name}-three kills", marks=pytest.mark.whole)
            for part in parts
        ]
        few = [
            pytest.param(part, 1, id=f"{part.name}-one kill")
            for part in parts
            if part.name in BY_DEFAULT
        ]
        metafunc.parametrize(("part", "kills"), few + whole)
