"""Tables as they are stored beside measurements."""

from dataclasses import replace

from neuroshard.records.parquet_schema import read_tables, tables_rows
from neuroshard.testing import toy_tables


def test_tables_come_back_with_what_is_known_of_their_lookups():
    """A run that goes on compares them with its own."""
    known, unknown = toy_tables(2)
    tables = [replace(known, row_lookups=(0.75, 0.25)), unknown]
    assert list(read_tables(tables_rows(tables).to_pylist()).values()) == tables


def test_tables_from_before_are_read():
    rows = [{key: row[key] for key in row if key != "row_lookups"} for row in tables_rows(toy_tables(2)).to_pylist()]
    assert tuple(read_tables(rows).values()) == toy_tables(2)
