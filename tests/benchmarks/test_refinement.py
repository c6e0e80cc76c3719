import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from refinement import COLUMNS, Setting, at_home, compared


def test_both_ways_are_compared():
    setting = Setting("tables", tasks=2, num_devices=2, noise=0.05)
    rows = list(compared(setting, at_home(setting, samples=120, epochs=2), [30]))
    first = [row.strip("| ").split(" | ")[:3] for row in rows]
    assert first == [["tables", "0", "as they were"], ["tables", "30", "random"], ["tables", "30", "refined"]]
    assert all(len(row.strip("| ").split(" | ")) == len(COLUMNS) for row in rows)
