"""The second line alone: with the walk switched off, audits find by its effect what it would capture."""

import pytest
from exactness_audited import Audited, audit
from exactness_list import find, groups, studies_of
from exactness_starting import forked

WITHOUT_FIRST_LINE = "exactness_sabotage:without_first_line"

IN_A_CLOSURE = "loss-closure-counter"
OTHERS = ("module-dictionary", "set-of-ints-order")
"""What acts in a module, and by an order."""


@pytest.mark.whole
def test_audits_alone_catch_what_acts_and_nothing_once_it_is_captured(tmp_path):
    part = find(IN_A_CLOSURE)
    without = audit(part, tmp_path / "without", forked(part, WITHOUT_FIRST_LINE))
    assert without.acts
    assert without.caught
    assert audit(part, tmp_path / "with", forked(part)) == Audited(IN_A_CLOSURE)


def check(names, directory):
    """Audit without the first line, and with both: what acts is caught, and then nothing acts."""
    acting = 0
    for name in names:
        part = find(name)
        alone = audit(part, directory / name / "alone", forked(part, WITHOUT_FIRST_LINE))
        both = audit(part, directory / name / "both", forked(part))
        print(alone, both, sep="\n")
        assert alone.caught or not alone.acts, alone
        assert not both.acts, both
        assert not both.caught, both
        acting += alone.acts
    return acting


@pytest.mark.whole
def test_audits_catch_what_acts_in_a_module_and_by_an_order(tmp_path):
    assert check(OTHERS, tmp_path) == len(OTHERS)


@pytest.mark.soak
def test_audits_alone_catch_whatever_acts_in_the_whole_corpus(tmp_path):
    assert check([part.name for group in groups() for part in studies_of(group)], tmp_path)
