"""The page of the database says of every column what it holds."""

import pytest
from column_meanings import MEANINGS
from database_page import models, page
from sqlalchemy import inspect

TABLES = [inspect(model).local_table for model in models()]


def undescribed(table, meanings):
    """Its columns that have no meaning, and meanings of no column."""
    plain = {
        column.name for column in table.columns if not column.foreign_keys and column.name != "id"
    }
    return sorted(plain ^ set(meanings))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_described(table):
    assert undescribed(table, MEANINGS[table.name]) == []
    assert f"## {table.name}" in page()


def test_control_a_column_without_a_meaning_and_a_meaning_without_a_column_are_found():
    [table] = [table for table in TABLES if table.name == "sweeper_epochs"]
    assert undescribed(table, {"epoch": "from 0", "gone": "?"}) == ["gone", "metrics"]
