"""Reports: what is gathered, what is compared, and a page that needs nothing but itself."""

import re
import shutil
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neuroshard.errors import UserError
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.search.heuristics import Greedy, Random
from neuroshard.search.report.gather import gather
from neuroshard.search.report.report_run import Report
from neuroshard.search.report.statistics import comparisons, interval, sensitivities
from neuroshard.search.search_run import Search
from neuroshard.testing import random_models, toy_task

CHROMIUM = shutil.which("chromium")


def _frame(costs, group="g"):
    """{method: cost by task; None is unsolved}."""
    return pd.DataFrame(
        [
            {"group": group, "method": method, "task": task, "ms": cost, "seconds": 0.5, "solved": cost is not None}
            for method, values in costs.items()
            for task, cost in enumerate(values)
        ]
    )


def test_methods_are_compared_on_what_all_solved():
    found = comparisons(_frame({"a": [1.0, 2.0, 3.0, 90.0], "b": [2.0, 4.0, 6.0, None]}), "group", "ms").set_index(
        "method"
    )
    assert list(found["solved"]) == [4, 3]
    assert list(found["common"]) == [3, 3]
    assert found.loc["a", "mean_ms"] == 2.0  # without the 90
    assert found.loc["b", "saved"] == 0.5
    assert found.loc["b", "saved_ci"] == pytest.approx(0)
    assert np.isnan(found.loc["a", "p"])


def test_intervals_and_p_values_are_the_textbooks():
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.302653 * 1 / np.sqrt(3), rel=1e-5)
    assert np.isnan(interval(np.array([1.0])))
    found = comparisons(_frame({"a": list(range(1, 11)), "b": [v + 0.5 + v / 10 for v in range(1, 11)]}), "group", "ms")
    assert found.set_index("method").loc["b", "p"] == pytest.approx(2 / 2**10)  # all ten the same way


def test_groups_stay_apart():
    both = pd.concat([_frame({"a": [1.0]}, "one"), _frame({"a": [3.0], "b": [2.0]}, "other")])
    found = comparisons(both, "group", "ms")
    assert [(row.group, row.method, row.mean_ms) for row in found.itertuples()] == [
        ("one", "a", 1.0), ("other", "b", 2.0), ("other", "a", 3.0),
    ]  # fmt: skip


def test_nothing_solved_by_all_is_no_comparison():
    found = comparisons(_frame({"a": [1.0, None], "b": [None, 1.0]}), "group", "ms")
    assert found["common"].tolist() == [0, 0]
    assert found["mean_ms"].isna().all()


def test_settings_are_curves():
    frame = _frame({"width=1": [4.0, 40.0], "width=10": [2.0, 20.0], "other": [1.0, 1.0]}).rename(
        columns={"group": "tasks", "ms": "predicted_ms"}
    )
    found = sensitivities(frame)
    assert found["value"].tolist() == [1.0, 10.0]
    assert found["relative"].tolist() == pytest.approx([1 / 3, -1 / 3])
    assert found["relative_ci"].tolist() == pytest.approx([0, 0])


@pytest.fixture
def runs(tmp_path):
    save_bundle(tmp_path / "models", random_models(), Card())
    tasks = tuple(toy_task(6, seed=seed) for seed in range(4))
    searchers = {"dim_greedy": Greedy("dim"), "random": Random(), "seed=1": Random(seed=1), "seed=2": Random(seed=2)}
    for name, searcher in searchers.items():
        Search(str(tmp_path / "models"), tasks, searcher, name, str(tmp_path / "runs" / name)).run()
    measured = tmp_path / "runs" / "measured"
    measured.mkdir()
    rows = [
        {"method": m, "task": t, "predicted_ms": 1.0 + t, "margin_ms": 0.2, "measured_ms": 1.1 + t, "seconds": 0.1}
        for m in ("random", "dim_greedy")
        for t in range(4)
    ]
    pd.DataFrame(rows).to_parquet(measured / "results.parquet")
    (measured / "run.json").write_text('{"hardware": {}}')
    return tmp_path / "runs"


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.images, self.links, self.heads, self._in_head = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "img":
            self.images.append(given["src"])
        self.links += [given[name] for name in ("href", "src") if name in given]
        self._in_head = tag == "h2"

    def handle_data(self, data):
        if self._in_head:
            self.heads.append(data)
            self._in_head = False


def test_the_page_holds_everything_and_needs_nothing(runs, tmp_path):
    result = Report(str(runs), str(tmp_path / "out")).run()
    page = _Page((tmp_path / "out" / "report.html").read_text())
    assert result.num_sections == len(page.heads) == 4
    assert [head.split(":")[0] for head in page.heads] == [
        "Predicted",
        "Sensitivity",
        "Measured",
        "Predicted against measured",
    ]
    assert len(page.images) == 4
    for image in page.images:
        assert b64decode(image.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    predicted = pd.read_csv(tmp_path / "out" / "tables" / "predicted.csv")
    assert set(predicted["method"]) == {"dim_greedy", "random"}
    assert len(list((tmp_path / "out" / "figures").glob("*.png"))) == 4


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_figures(runs, tmp_path):
    Report(str(runs), str(tmp_path / "out")).run()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    page = (tmp_path / "out" / "report.html").as_uri()
    probe = tmp_path / "probe.html"
    script = "document.title = [...document.images].map(i => i.naturalWidth).join(' ')"
    text = Path(tmp_path / "out" / "report.html").read_text()
    probe.write_text(text.replace("</body>", f"<script>onload = () => {{ {script} }}</script></body>"))
    for url, found in ((page, "data:image/png"), (probe.as_uri(), "<title>")):
        command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", url]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        assert found in shown
    widths = re.search(r"<title>([\d ]+)</title>", shown)[1].split()
    assert len(widths) == 4
    assert all(int(width) > 500 for width in widths)


def test_same_names_of_different_runs_are_told_apart(runs, tmp_path):
    tasks = tuple(toy_task(6, seed=seed) for seed in range(4))
    save_bundle(tmp_path / "others", random_models(seed=3), Card())
    Search(str(tmp_path / "others"), tasks, Random(), "random", str(runs / "again")).run()
    names = set(gather([runs]).searched["method"])
    assert f"random ({tmp_path / 'others'})" in names
    assert "dim_greedy" in names


def test_mistakes_are_named(tmp_path, runs):
    with pytest.raises(UserError, match="no directory"):
        gather([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no finished run in"):
        gather([tmp_path / "empty"])
    (runs / "random" / "results.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="can't be read"):
        gather([runs])
