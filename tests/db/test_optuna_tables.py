"""The columns of Optuna's tables that sweeper reads and writes without importing Optuna."""

import pytest
import sqlalchemy as sa
from optuna.storages._rdb import models

from sweeper.db import optuna_rows

OURS = optuna_rows._metadata.tables


def differences(table):
    """What a table of ours has otherwise than Optuna's of the same name."""
    theirs = models.BaseModel.metadata.tables[table.name]
    found = []
    for column in table.c:
        other = theirs.c.get(column.name)
        if other is None or column.primary_key != other.primary_key:
            found.append(column.name)
        elif isinstance(column.type, sa.Enum) or isinstance(other.type, sa.Enum):
            kinds = [(kind.name, sorted(kind.enums)) for kind in (column.type, other.type)]
            found += [column.name] * (kinds[0] != kinds[1])
        elif column.type._type_affinity is not other.type._type_affinity:
            found.append(column.name)
    return found


@pytest.mark.parametrize("name", OURS)
def test_each_column_is_optunas(name):
    assert differences(OURS[name]) == []


def test_a_column_that_optuna_changes_is_found():
    changed = sa.Table(
        "trials",
        sa.MetaData(),
        sa.Column("trial_id", sa.Integer),
        sa.Column("number", sa.Text),
        sa.Column("state", sa.Enum("RUNNING", name="trialstate")),
        sa.Column("place", sa.Integer),
    )
    assert differences(changed) == ["trial_id", "number", "state", "place"]
