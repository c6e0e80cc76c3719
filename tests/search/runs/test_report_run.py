"""Reports: comparisons, sensitivities, and a page with all pictures embedded."""

import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from neuroshard import InfeasibleError, Topology
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.models.trust import DATASHEET
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.report.gather import gather
from neuroshard.stages.search.report.reported import compared_shown
from neuroshard.stages.search.report.sweep_statistics import comparisons, in_sweep, interval, sensitivities
from neuroshard.stages.search.runs.report import Report
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from tests.kit.messages import refused

TASKS = tuple(toy_task(6, seed=seed) for seed in range(4))


def _frame(costs, group="g"):
    """{method: cost by task; None is unsolved}."""
    return pd.DataFrame(
        [
            {"group": group, "method": method, "task": task, "ms": cost, "seconds": 0.5, "solved": cost is not None}
            for method, values in costs.items()
            for task, cost in enumerate(values)
        ]
    )


def test_comparisons_use_tasks_that_all_methods_solved():
    frame = _frame({"a": [1.0, 2.0, 3.0, 90.0], "b": [2.0, 4.0, 6.0, None]})
    found = comparisons(frame, "group", "ms").set_index("method")
    assert list(found["solved"]) == [4, 3]
    assert list(found["common"]) == [3, 3]
    assert found.loc["a", "mean_ms"] == 2.0  # without the 90
    assert found.loc["b", "saved"] == 0.5
    assert found.loc["b", "saved_ci"] == pytest.approx(0)
    assert np.isnan(found.loc["a", "p"])


def test_a_search_that_finds_no_plan_for_its_only_task_is_reported(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card())
    task = toy_task(5, num_devices=2)
    largest = max(table.size_bytes for table in task.tables)
    tight = replace(task, topology=Topology(2, largest - 1))
    for method in ("dim", "size"):
        _search(tmp_path, method, Greedy("dim"), (task,))
    with refused("tables-exceed-devices", kind=InfeasibleError):
        _search(tmp_path, "lookup", Greedy("dim"), (tight,))
    assert gather([tmp_path / "runs"]).searched["solved"].tolist() == [True, False, True]
    _search(tmp_path, "lookup", Greedy("dim"), (task,))
    assert gather([tmp_path / "runs"]).searched["solved"].all()  # another search may take its place


def test_report_marks_predicted_costs_without_measurements(tmp_path):
    for method in ("dim", "size"):
        Search("roofline:h100", (toy_task(6),), Greedy(method), method, str(tmp_path / "runs" / method)).run()
    Report(str(tmp_path / "runs"), str(tmp_path / "report")).run()
    page = (tmp_path / "report/report.html").read_text()
    (caveat,) = set(gather([tmp_path / "runs"]).searched["caveat"])
    assert caveat.startswith(DATASHEET)
    assert f"<td>{caveat}</td>" in page
    assert pd.read_csv(tmp_path / "report/tables/predicted.csv")["caveat"].tolist() == [caveat] * 2


def test_intervals_and_p_values_equal_textbook_values():
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.302653 * 1 / np.sqrt(3), rel=1e-5)
    assert np.isnan(interval(np.array([1.0])))
    found = comparisons(_frame({"a": list(range(1, 11)), "b": [v + 0.5 + v / 10 for v in range(1, 11)]}), "group", "ms")
    assert found.set_index("method").loc["b", "p"] == pytest.approx(2 / 2**10)  # all ten the same way


def test_comparisons_rank_methods_within_each_group():
    both = pd.concat([_frame({"a": [1.0]}, "one"), _frame({"a": [3.0], "b": [2.0]}, "other")])
    found = comparisons(both, "group", "ms")
    assert [(row.group, row.method, row.mean_ms) for row in found.itertuples()] == [
        ("one", "a", 1.0), ("other", "b", 2.0), ("other", "a", 3.0),
    ]  # fmt: skip


def test_comparisons_without_a_task_solved_by_all_have_no_mean():
    found = comparisons(_frame({"a": [1.0, None], "b": [None, 1.0]}), "group", "ms")
    assert found["common"].tolist() == [0, 0]
    assert found["mean_ms"].isna().all()


def test_comparison_lists_a_method_without_solved_tasks_last_and_without_a_mean():
    found = comparisons(_frame({"a": [None], "b": [2.0], "c": [1.0]}), "group", "ms").set_index("method")
    assert found.index.tolist() == ["c", "b", "a"]
    assert found["solved"].tolist() == [1, 1, 0]
    assert found["mean_ms"].tolist()[:2] == [1.0, 2.0]
    assert np.isnan(found.loc["a", "mean_ms"])
    table = compared_shown(found.reset_index(), "Predicted", "tasks", "mean").table
    assert table["method"].tolist() == ["c", "b", "a"]
    assert table["solved"].tolist() == ["1", "1", "0"]
    assert table["mean ms"].tolist() == ["1.000", "2.000", ""]


def _swept(costs, values):
    frame = _frame(costs).rename(columns={"group": "tasks", "ms": "predicted_ms"})
    return frame.assign(setting=frame["method"].map(lambda m: "width" if m in values else None),
                        value=frame["method"].map(values).astype(float))  # fmt: skip


def test_sensitivities_compare_swept_values_with_the_default():
    frame = _swept({"b": [2.0, 20.0], "a": [4.0, 40.0], "other": [1.0, 1.0]}, {"a": 1, "b": 10})
    assert in_sweep(frame).tolist() == [True] * 4 + [False] * 2
    found = sensitivities(frame)
    assert found["value"].tolist() == [1.0, 10.0]
    assert found["relative"].tolist() == pytest.approx([1 / 3, -1 / 3])
    assert found["relative_ci"].tolist() == pytest.approx([0, 0])


def test_setting_with_one_value_is_not_in_a_sweep():
    frame = _swept({"a": [4.0], "other": [1.0]}, {"a": 1})
    assert not in_sweep(frame).any()
    assert sensitivities(frame).empty


def test_sensitivities_count_values_that_solve_no_task():
    found = sensitivities(_swept({"a": [4.0, 5.0], "b": [None, None]}, {"a": 1, "b": 2}))
    assert found["solved"].tolist() == [2, 0]
    assert found["mean_ms"].isna().all()


def _evaluation(folder, rows):
    folder.mkdir(parents=True)
    names = ("method", "task", "predicted_ms", "margin_ms", "measured_ms", "seconds")
    pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows]).to_parquet(folder / "results.parquet")
    (folder / "run.json").write_text('{"format": "neuroshard-run-2", "kind": "evaluate", "hardware": {}}')


def _search(tmp_path, name, searcher, tasks):
    Search(str(tmp_path / "models"), tasks, searcher, name, str(tmp_path / "runs" / name)).run()


@pytest.fixture
def models(tmp_path):
    save_bundle(tmp_path / "models", random_models(), Card())


@pytest.fixture
def runs(models, tmp_path):
    searchers = {"dim_greedy": Greedy("dim"), "random": Random(), "seed=1": Random(seed=1), "seed=2": Random(seed=2)}
    for name, searcher in searchers.items():
        _search(tmp_path, name, searcher, TASKS)
    rows = [(method, t, 1.0 + t, 0.2, 1.1 + t, 0.1) for method in ("random", "dim_greedy") for t in range(4)]
    _evaluation(tmp_path / "runs" / "measured", rows)
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


def test_report_page_has_every_section_and_embeds_its_pictures(runs, tmp_path):
    result = Report(str(runs), str(tmp_path / "out")).run()
    page = _Page((tmp_path / "out" / "report.html").read_text())
    assert result.num_sections == len(page.heads)
    assert page.heads == ["Predicted", "Sensitivity", "Measured", "Predicted against measured"]
    assert len(page.images) == 4
    for image in page.images:
        assert b64decode(image.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    predicted = pd.read_csv(tmp_path / "out" / "tables" / "predicted.csv")
    assert set(predicted["method"]) == {"dim_greedy", "random"}
    assert len(list((tmp_path / "out" / "figures").glob("*.png"))) == 4


def test_equal_names_of_different_runs_are_made_distinct(runs, tmp_path):
    save_bundle(tmp_path / "others", random_models(seed=3), Card())
    Search(str(tmp_path / "others"), TASKS, Random(), "random", str(runs / "again")).run()
    found = gather([runs]).searched
    assert {"random", "dim_greedy"} <= set(found["method"])
    by_others = found["tasks"].str.endswith(f"predicted by {tmp_path / 'others'}")
    assert set(found[by_others]["method"]) == {"random"}
    assert len(found[~by_others & (found["method"] == "random")])


def _reported(tmp_path):
    """Make a report of all runs; return its text without styles and pictures, and its number of sections."""
    result = Report(str(tmp_path / "runs"), str(tmp_path / "out")).run()
    text = re.sub(r"(?s)<style>.*?</style>|<[^>]*>", " ", (tmp_path / "out" / "report.html").read_text())
    return " ".join(text.split()), result.num_sections


def test_report_of_one_run_has_no_figures_and_no_unknown_numbers(models, tmp_path):
    _search(tmp_path, "random", Random(), TASKS[:1])
    words, num_sections = _reported(tmp_path)
    assert num_sections == 1
    assert not re.search(r"\bnan\b", words, re.IGNORECASE)
    assert "± ms" not in words
    assert not (tmp_path / "out" / "figures").exists()
    assert "random" in words


NAN = float("nan")


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 0, 1.0, NAN, 2.0, NAN)],
        [("a", 0, NAN, NAN, 2.0, NAN)],
        [("a", 0, 1.0, 0.5, NAN, 0.1)],
        [("a", 0, 1.0, NAN, 2.0, NAN), ("b", 0, 1.0, NAN, 2.0, NAN)],
        [("a", 0, 1.0, NAN, 2.0, NAN), ("b", 1, 1.0, NAN, 2.0, NAN)],
        [("a", 0, 0.0, 0.0, 0.0, 0.0), ("b", 0, 0.0, 0.0, 0.0, 0.0)],
        [(m, t, 1.0, NAN, 2.0, NAN) for m in "abc" for t in range(3)],
    ],
)
def test_unknown_values_are_not_shown_in_reports(tmp_path, rows):
    _evaluation(tmp_path / "runs" / "one", rows)
    words, _ = _reported(tmp_path)
    assert not re.search(r"\b(nan|inf|None)\b", words)
    assert "inside it" not in words or rows[0][3] == 0


def test_report_of_thirty_evaluated_plans_has_one_table_in_order_of_paths(tmp_path):
    for number in range(30):
        _evaluation(tmp_path / "runs" / str(number), [("task-0000", 0, 1.0 + number, 1.0, 2.0 + number, NAN)])
    assert _reported(tmp_path)[1] == 2
    page = (tmp_path / "out" / "report.html").read_text()
    places = [page.index(f">{tmp_path / 'runs' / str(number)}<") for number in range(30)]
    assert places == sorted(places)  # 2 before 10


def test_report_of_many_methods_draws_one_picture_and_lists_every_method(tmp_path):
    rows = [(f"method {m}", t, 1.0 + m, 1.0, 2.0 + m + t, 0.1) for m in range(60) for t in range(3)]
    _evaluation(tmp_path / "runs" / "one", rows)
    words, _ = _reported(tmp_path)
    names = sorted(path.name for path in (tmp_path / "out" / "figures").iterdir())
    assert names == ["measured-0.png", "scatter.png"]
    assert "40 of 60" in words
    assert "method 59" in words


def test_report_states_if_a_training_found_no_plan(tmp_path):
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    pd.DataFrame({"round": [0, 1], "valid_ms": [float("inf"), NAN]}).to_parquet(folder / "curve.parquet")
    (folder / "run.json").write_text('{"format": "neuroshard-run-2", "kind": "train-policy", "settings": {}}')
    (folder / "policy.json").write_text('{"card": {"references_ms": {"random": 3.0}}}')
    words, _ = _reported(tmp_path)
    assert "Learned policies" in words
    assert not re.search(r"\b(nan|inf)\b", words)


def test_methods_with_markup_are_text_everywhere(tmp_path, capsys):
    names = ["=1+1", "$x_1$", "[bold]b[/nope]", "<b>b</b>"]
    _evaluation(tmp_path / "runs" / "$[red]", [(name, t, 1.0, 1.0, 2.0 + t, 0.1) for name in names for t in range(3)])
    Report(str(tmp_path / "runs"), str(tmp_path / "[bold]out")).run().show(Console(width=300))
    assert "[bold]out/report.html" in capsys.readouterr().out
    page = (tmp_path / "[bold]out" / "report.html").read_text()
    assert "<b>b" not in page
    assert all(name in page for name in ("=1+1", "$x_1$", "[bold]b[/nope]", "&lt;b&gt;b"))
    table = pd.read_csv(tmp_path / "[bold]out" / "tables" / "measured.csv")
    assert set(table["method"]) == {"'=1+1", *names[1:]}


def test_report_writes_its_tables_before_drawing(runs, tmp_path, monkeypatch):
    def fail(*given):
        raise ValueError("no picture")

    monkeypatch.setattr("neuroshard.stages.search.report.reported.comparison_bars", fail)
    with pytest.raises(ValueError, match="no picture"):
        Report(str(runs), str(tmp_path / "out")).run()
    names = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    assert names == {"predicted.csv", "measured.csv", "sensitivity.csv"}


def test_report_into_the_directory_of_a_run_is_refused(runs, tmp_path):
    before = sorted(runs.rglob("*"))
    (tmp_path / "link").symlink_to(runs / "random")
    for out in (runs / "random", runs / "measured", runs / "random" / ".." / "random", tmp_path / "link"):
        with refused("report-out-is-run", names=[f"out={out}"]):
            Report(str(runs), str(out)).run()
    (tmp_path / "file").write_text("kept")
    with refused("out-under-file", names=[tmp_path / "file"]):
        Report(str(runs), str(tmp_path / "file")).run()
    assert sorted(runs.rglob("*")) == before
    Report(str(runs), str(runs / "page")).run()  # among them is fine


def test_report_refuses_missing_empty_and_damaged_runs(tmp_path, runs):
    with refused("report-directory-missing", names=[tmp_path / "nowhere"]):
        gather([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with refused("report-no-finished-run", names=[tmp_path / "empty"]):
        gather([tmp_path / "empty"])
    (runs / "random" / "results.parquet").write_bytes(b"PAR1")
    with refused("parquet-damaged", names=[runs / "random" / "results.parquet"]):
        gather([runs])
