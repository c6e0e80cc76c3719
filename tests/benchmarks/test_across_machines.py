import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from across_machines import COLUMNS, Setting, made_up, rows


def test_every_way_has_an_error_for_every_count():
    setting = Setting(samples=60, members=2, epochs=1, counts=(5,), seeds=(0,))
    found = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows([made_up(0), made_up(1)], 1, setting)]
    assert [(row[0], row[1]) for row in found] == [("made up 1", "0"), ("made up 1", "5")]
    assert all(len(row) == len(COLUMNS) + 3 for row in found)
    assert all(cell.endswith("%") for cell in found[1][2:])
