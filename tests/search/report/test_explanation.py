"""Explanations compared with numbers computed by hand."""

import re
from dataclasses import replace
from functools import partial
from io import StringIO

import pytest
from rich.console import Console

from neuroshard import CostModels, Plan, Prediction, Simulator, Table, Task, Topology, search
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.models.parts import Framework
from neuroshard.models.trust import Margin, Margins
from neuroshard.plans.moves import moved_bytes, table_changes
from neuroshard.plans.plan import assemble
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.stages.search.report.explained import difference, sections
from neuroshard.stages.search.report.explanation import explain
from neuroshard.stages.search.report.page import show_sections
from neuroshard.stages.search.runs.explain import Explain, models_of
from neuroshard.testing import ONCE, OpaqueCompute, linear_models, random_models, toy_tables, toy_task
from neuroshard.words.form import Form
from neuroshard.words.model_choice import ModelChoice
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole
from tests.kit.random_models import random_form_models
from tests.kit.searches import H100
from tests.kit.tasks import plain_task

PER_TABLE, PER_COLUMN, PER_SENT = 0.05, 0.01, 0.002


_task = partial(plain_task, rows=100, lookups=1.0)
SIMULATOR = Simulator(linear_models(2))
SIMULATOR_128 = Simulator(linear_models(128))


def test_explanation_names_the_slowest_device_and_costs_of_its_tables():
    found = explain(whole(_task([64, 32, 8]), 1, 1, 0), SIMULATOR)
    assert found.bottleneck == 1
    assert [(share.table.name, share.placed.device) for share in found.shards] == [("t0", 1), ("t1", 1), ("t2", 0)]
    assert found.shards[0].alone_ms == pytest.approx(PER_TABLE + PER_COLUMN * 64, rel=1e-5)
    compute = [PER_TABLE + PER_COLUMN * 8, 2 * PER_TABLE + PER_COLUMN * 96]
    assert (found.slowest, found.widest) == (1, 1)
    assert found.compute_excess_ms == pytest.approx((compute[1] - compute[0]) / 2, rel=1e-5)
    assert found.exchange_excess_ms == pytest.approx(2 * PER_SENT * (96 - 52), rel=1e-4)
    assert found.balanced_ms == pytest.approx(sum(compute) / 2 + 2 * PER_SENT * 52, rel=1e-5)


def test_bottleneck_is_the_widest_device_if_exchanges_cost_most():
    """The first device computes a little longer; the second device has nearly all columns, which cost much more."""
    tables = (Table("long", 100, 4, 40.0, ONCE), Table("wide", 100, 128, 1.0, ONCE))
    task = Task(tables, Topology(2, 1 << 30), 256)
    models = linear_models(2)
    expensive = replace(models.forward, per_column_ms=0.05)
    simulator = Simulator(replace(models, forward=expensive, backward=expensive))
    found = explain(whole(task), simulator)
    assert (found.slowest, found.widest, found.bottleneck) == (0, 1, 1)


def test_explanation_shows_the_wait_for_hosts():
    plan = whole(_task([64, 4]))
    ready_ms = Simulator(linear_models(2)).cost(plan.task, plan).total_ms
    models = replace(linear_models(2), framework=Framework(1.0, {}, {}, {}, {"step": ready_ms + 10})).in_torchrec()
    waiting = _summary_of(explain(plan, Simulator(models.with_dense_ms(0.0))))["host"]
    assert "9.00 ms" in waiting
    assert "host" not in _summary_of(explain(plan, Simulator(models.with_dense_ms(10.0))))


def test_devices_are_readable_in_120_columns_with_all_framework_parts():
    task = Task(toy_tables(12), Topology(4, 1 << 33), 4096)
    choice = CostModels.load("cpu").in_torchrec()
    found = explain(whole(task, *[i % 4 for i in range(12)]), Simulator(choice))
    text = _shown(found, width=120)
    devices = text[text.index("\nDevices") : text.index("\nParts of framework")].splitlines()
    headers = next(line for line in devices if line.startswith("device"))
    assert headers.split() == ["device", "total", "ms", *_COLUMNS, "columns", "memory", "of"]  # in one line
    details = text[text.index("\nParts of framework") : text.index("\nWhat ")]
    (frameworks,) = (section for section in sections(found) if section.title == "Parts of framework")
    (table,) = (section.table for section in sections(found) if section.title == "Devices")
    parts = frameworks.table.drop(columns="device").astype(float)
    assert parts.shape == (4, 3)
    assert parts.sum(axis=1).tolist() == pytest.approx(table["framework"].astype(float).tolist(), abs=0.02)
    assert frameworks.table["device"].tolist() == table["device"].tolist()
    assert all(name in details for name in ("input", "kernels", "outputs"))


_COLUMNS = ("compute", "forward", "backward", "input", "framework")


def _mixed(memory_bytes=1 << 30):
    """A row-wise table, a data-parallel table and two column-wise tables."""
    task = _task([64, 8, 32, 16], memory_bytes=memory_bytes)
    return laid_out(task, [0, 1], DATA_PARALLEL, 0, 1)


def test_plans_with_row_wise_and_data_parallel_tables_are_explained():
    found = explain(_mixed(), H100)
    here = [share for share in found.shards if share.placed.device == 0]
    assert {(share.table.name, share.layout.form, share.placed.shard.rows) for share in here} == {
        ("t0", Form.ROW_WISE, 50), ("t1", Form.DATA_PARALLEL, 100), ("t2", Form.COLUMN_WISE, 100),
    }  # fmt: skip
    assert {share.table.name: share.size_bytes for share in found.shards}["t0"] == 50 * 64 * 4
    text = _shown(found, 120)
    assert "64, 50 rows" in text
    assert "8, data-parallel" in text


def test_table_changes_name_sharding_types_before_and_after():
    rows = _mixed()
    columns = whole(rows.task)
    moves = {move.table: move for move in table_changes(rows, columns)}
    assert {name: (move.layout_before.form, move.layout_after.form) for name, move in moves.items()} == {
        "t0": (Form.ROW_WISE, Form.COLUMN_WISE), "t1": (Form.DATA_PARALLEL, Form.COLUMN_WISE),
    }  # fmt: skip
    assert (moves["t0"].size_bytes, moves["t1"].size_bytes) == (50 * 64 * 4, 0)
    table = difference(explain(rows, H100), explain(columns, H100), tuple(moves.values())).table
    assert table.iloc[0].tolist()[:3] == ["t0", "row_wise on 2 devices, 0 to 1", "64 on 0"]


def test_a_plan_without_columns_is_explained():
    found = explain(laid_out(_task([8, 16]), DATA_PARALLEL, [0, 1]), H100)
    assert _summary_of(found)["bottleneck"].startswith("none")
    assert found.plan.device_dims == (0, 0)
    assert found.exchange_excess_ms == pytest.approx(0)


def test_learned_models_of_every_sharding_type_explain_mixed_plans():
    found = explain(_mixed(), Simulator(random_form_models()))
    assert [part.name for part in found.cost.parts if not part.counts] == ["input"]
    assert "input" in _shown(found)
    assert "input" not in _shown(explain(whole(_task([64, 8])), SIMULATOR))


def test_models_that_cannot_cost_a_sharding_type_refuse_to_explain_it():
    with refused("plan-sharding-type-unsupported", where="plan", names=["'t0'", "row_wise", "column_wise"]):
        explain(_mixed(), SIMULATOR)


def test_plans_that_break_their_task_are_explained_too():
    found = explain(whole(_task([32, 32], memory_bytes=1000), 0), SIMULATOR)
    assert found.warnings[0].code == "explained-plan-violation"
    assert "device 0" in found.warnings[0].what
    assert all(isinstance(answer, str) for answer in found.heuristics.values())


def test_explanation_lists_shards_if_models_are_opaque():
    opaque = Simulator(replace(linear_models(2), compute=OpaqueCompute()))
    found = explain(whole(_task([32, 32]), 0), opaque)
    assert len(found.shards) == 2


def _shown(found, width=80):
    console = Console(width=width, record=True, file=StringIO())
    show_sections(console, sections(found))
    return console.export_text()


def test_explanation_in_a_terminal_shows_a_few_of_many_devices():
    task = _task([4 * (1 + i % 16) for i in range(256)], devices=128)
    text = _shown(explain(assemble(task, [(i, t.dim, i // 2) for i, t in enumerate(task.tables)]), SIMULATOR_128))
    devices = text[text.index("Devices") : text.index("What slows")]
    assert len(devices.splitlines()) < 25
    assert "of 128 rows" in devices
    assert len(text.splitlines()) < 80
    assert max(map(len, text.splitlines())) <= 80


def test_explanation_lists_the_bottleneck_device_first():
    """The device with the most columns is neither among those that compute longest nor among the shortest."""
    tables = tuple(Table(f"t{i}", 100, 4, 10.0 + i, ONCE) for i in range(32))
    task = Task((*tables, Table("wide", 100, 128, 0.5, ONCE)), Topology(33, 1 << 30), 256)
    models = linear_models(33)
    expensive = replace(models.forward, per_column_ms=0.05)
    found = explain(whole(task), Simulator(replace(models, forward=expensive, backward=expensive)))
    assert found.bottleneck == found.widest == 32
    (devices,) = (section for section in sections(found) if section.title == "Devices")
    assert devices.table["device"][0] == "32"
    assert sorted(map(int, devices.table["device"])) == list(range(33))


@pytest.fixture
def files(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card())
    task = _task([32, 16, 8])
    for name, devices in (("one", (0, 1, 1)), ("two", (1, 0, 0))):
        whole(task, *devices).save(tmp_path / f"{name}.json")
    whole(_task([4, 4])).save(tmp_path / "other.json")
    return tmp_path


def test_explaining_a_plan_writes_a_page_with_tables_and_pictures(files):
    result = Explain(str(files / "one.json"), str(files / "models"), str(files / "page.html")).run()
    text = (files / "page.html").read_text()
    assert "data:image/png;base64," in text
    assert re.search(r"<td>t2</td>\s*<td>1</td>\s*<td>8</td>", text)
    for title in ("Summary", "Devices", "What slows device", "Heuristics compared", "All shards"):
        assert f"<h2>{title}" in text
    assert len(result.explanations) == 1


def test_explaining_two_plans_shows_moves_and_both_summaries(files, capsys):
    paths = [str(files / "one.json"), str(files / "two.json")]
    Explain(paths, str(files / "models"), None).run().show(Console(width=100))
    shown = capsys.readouterr().out
    assert shown.index("From the first plan") < shown.index("First plan: summary") < shown.index("Second plan: summary")
    assert "3 of 3" in shown
    moved = shown[shown.index("From the first") : shown.index("First plan: summary")]
    assert re.findall(r"(?m)^t\d", moved) == ["t0", "t1", "t2"]  # the most bytes first


def test_a_page_shows_every_move_a_terminal_the_first(files, capsys):
    for name, device in (("here", 0), ("there", 1)):
        whole(_task([8] * 30), device).save(files / f"{name}.json")
    paths = [str(files / "here.json"), str(files / "there.json")]
    Explain(paths, str(files / "models"), str(files / "page.html")).run().show(Console(width=100))
    page = (files / "page.html").read_text()
    moved = page[page.index("From the first plan") : page.index("<h2>First plan: summary")]
    assert moved.count("8 on 1") == 30
    assert "16 of 30 rows" in capsys.readouterr().out


def test_explanation_shows_names_with_markup_as_plain_text(files, capsys):
    """Markup of terminals, HTML and formulas in names is shown as text."""
    name = "[bold]x[/nope] <b>$\\frac{$ & _y^"
    tables = (Table(name, 100, 32, 1.0, ONCE), Table("other", 100, 32, 1.0, ONCE))
    task = Task(tables, Topology(2, 1 << 30), 256)
    path = files / "[red]$a_$<i>.json"
    whole(task, 0).save(path)
    Explain(str(path), str(files / "models"), str(files / "page.html")).run().show(Console(width=400))
    shown, page = capsys.readouterr().out, (files / "page.html").read_text()
    assert name in shown
    assert path.name in shown
    assert "[bold]x[/nope] &lt;b&gt;$\\frac{$ &amp; _y^" in page
    assert "<b>$" not in page
    assert "<i>.json" not in page


@pytest.mark.parametrize("name", ["one.json", "page.txt", "page", "notes.html.json"])
def test_a_page_is_written_to_html_files_only(files, name):
    (files / "page.txt").write_text("kept")
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    with refused("explain-out-suffix", names=[name, ".html"]):
        Explain(str(files / "one.json"), "no such model", str(files / name)).run()
    assert {path: path.read_bytes() for path in files.iterdir() if path.is_file()} == before


def test_a_page_never_replaces_a_plan_or_a_directory(files):
    plan = files / "plan.html"
    plan.write_bytes((files / "one.json").read_bytes())
    (files / "other.html").symlink_to(plan)
    for out in (plan, files / "other.html", files / "models" / ".." / "plan.html"):
        with refused("explain-out-is-plan", names=[out]):
            Explain(str(plan), "no such model", str(out)).run()
    assert plan.read_bytes() == (files / "one.json").read_bytes()
    (files / "folder.html").mkdir()
    with refused("explain-out-not-file", names=[files / "folder.html"]):
        Explain(str(plan), "no such model", str(files / "folder.html")).run()


def test_explain_refuses_unfit_plans_and_names_the_mistake(files):
    with refused("explain-tables-differ", names=[files / "one.json", files / "other.json", "t2"]):
        Explain([str(files / "one.json"), str(files / "other.json")], str(files / "models"), None).run()
    with refused("explain-plan-count", names=["3 plans"]):
        Explain([str(files / "one.json")] * 3, str(files / "models"), None).run()
    with refused("file-missing", names=["nowhere.json"]):
        Explain("nowhere.json", str(files / "models"), None).run()


def _found_with(models):
    plan = whole(toy_task(3))
    return plan if models == "unknown" else replace(plan, prediction=Prediction(models and ModelChoice(models), 1.0))


def test_plans_are_explained_by_the_models_that_found_them(tmp_path):
    plans = [_found_with("roofline:h100"), _found_with("cpu")]
    assert models_of(plans[:1], None) == (ModelChoice("roofline:h100"), "")
    assert models_of(plans[:1], ModelChoice("cpu")) == (ModelChoice("cpu"), "")
    assert "cpu" in models_of(plans, None)[1]
    assert "model=NAME" in models_of([_found_with("unknown")], None)[1]
    for gone in (str(tmp_path / "gone"), None):
        with refused("explain-models-missing") as caught:
            models_of([_found_with(gone)], None)
        assert "model=cpu" in caught.value.message.remedy


@pytest.mark.parametrize(
    "name", ["nosuch", "roofline:nosuch", "models", "../models", "models/../gone", "GONE", "file.json", "ABSOLUTE_FILE"]
)
def test_explain_names_the_plan_whose_models_are_not_here(files, monkeypatch, name):
    """Relative paths in a plan file are never read, because the file may be of somebody else."""
    monkeypatch.chdir(files)
    (files / "file.json").write_text("{}")
    stored = {"GONE": str(files / "gone"), "ABSOLUTE_FILE": str(files / "file.json")}.get(name, name)
    path = files / "theirs.json"
    replace(Plan.load(files / "one.json"), prediction=Prediction(ModelChoice(stored), 1.0)).save(path)
    with refused("unknown-name" if "roofline" in name else "explain-models-missing", where=str(path)) as caught:
        Explain(str(path)).run()
    assert "model=cpu" in caught.value.message.remedy
    assert Explain(str(path), str(files / "models")).run().explanations


def test_explain_loads_own_models_from_their_stored_path(files, monkeypatch):
    monkeypatch.chdir(files)
    plan = Simulator(CostModels.load("models")).predicted(Plan.load(files / "one.json"))
    plan.save(files / "own.json")
    assert Explain(str(files / "own.json")).run().model == ModelChoice(str(files / "models"))


def test_explained_costs_equal_predicted_costs(tmp_path):
    task = toy_task(5, num_devices=2)
    plan = search(task, H100, searcher="dim_greedy")
    plan.save(tmp_path / "plan.json")
    result = Explain(str(tmp_path / "plan.json"), None, None).run()
    assert result.explanations[0].cost.total_ms == pytest.approx(plan.prediction.cost_ms)


def test_explaining_two_plans_costs_both_on_one_task_with_a_note(files, capsys):
    plan = Plan.load(files / "two.json")
    hot = tuple(replace(table, pooling_factor=10 * table.pooling_factor) for table in plan.task.tables)
    Plan(replace(plan.task, tables=hot), plan.placements).save(files / "hot.json")
    paths = [str(files / "two.json"), str(files / "hot.json")]
    result = Explain(paths, str(files / "models"), None).run()
    assert result.explanations[0].cost.total_ms == result.explanations[1].cost.total_ms
    assert "tables" in result.note.split()
    assert Explain(paths[:1], str(files / "models"), None).run().note == ""


def test_plans_whose_tables_grew_are_compared(files, capsys):
    """Tables are matched by name in any order, and moved bytes are those of replan."""
    plan = Plan.load(files / "two.json")
    first, *rest = plan.task.tables
    grown = replace(plan.task, tables=(*rest, replace(first, rows=2 * first.rows)))
    after = whole(grown, 1 - plan.by_table[0][0].device)
    after.save(files / "grown.json")
    result = Explain([str(files / "two.json"), str(files / "grown.json")], str(files / "models"), None).run()
    result.show(Console(width=200))
    shown = capsys.readouterr().out
    assert f"{first.name}: rows {first.rows:,} -> {2 * first.rows:,}" in shown
    assert f"to be moved: {readable_bytes(moved_bytes(plan, after))}" in shown
    assert {explained.plan.task == grown for explained in result.explanations} == {True}


@pytest.mark.parametrize("change", ["devices", "pooling"])
def test_plans_that_fit_no_common_task_are_costed_each_on_its_own(files, change):
    plan = Plan.load(files / "two.json")
    tables, topology = plan.task.tables, plan.task.topology
    if change == "devices":
        topology = replace(topology, num_devices=4)
    tables = tuple(replace(table, pooled=change != "pooling", pooling_factor=9.0) for table in tables)
    task = replace(plan.task, tables=tables, topology=topology, batch_size=512)
    Plan(task, plan.placements).save(files / "other_task.json")
    for names in (("two", "other_task"), ("other_task", "two")):
        result = Explain([str(files / f"{name}.json") for name in names], "roofline:h100", None).run()
        assert result.note == ""
        assert [its.plan.task for its in result.explanations] == [
            Plan.load(files / f"{name}.json").task for name in names
        ]


def test_prediction_records_if_the_input_exchange_was_counted():
    task, models = toy_task(5, num_devices=2), CostModels.load("roofline:h100")
    costs = {}
    for count in (False, True):
        plan = Simulator(models, count).predicted(whole(task))
        assert plan.prediction.counts_input is count
        assert Plan.from_json(plan.to_json(), "it").prediction == plan.prediction
        costs[count] = plan.prediction.cost_ms
    assert costs[True] > costs[False]


def _summary_of(found):
    (summary,) = (section for section in sections(found) if section.title == "Summary")
    return dict(summary.table.itertuples(index=False))


def test_explanation_shows_the_expected_cost_only_if_margins_are_known():
    known = replace(linear_models(2), margins=Margins(Margin(0.1, 1.0), Margin(0.0, 0.0), Margin(0.0, 0.0)))
    found = explain(whole(_task([32, 32])), Simulator(known))
    assert found.cost.expected_ms > found.cost.total_ms
    assert _summary_of(found)["expected cost"].startswith(f"{found.cost.expected_ms:.2f} ms")
    assert "expected cost" not in _summary_of(explain(whole(_task([32, 32])), SIMULATOR))


def test_explanation_of_a_balanced_plan_names_no_bottleneck():
    even = explain(whole(_task([32, 32])), SIMULATOR)
    uneven = explain(whole(_task([32, 32]), 0), SIMULATOR)
    for found, balanced in ((even, True), (uneven, False)):
        text = _shown(found)
        assert found.is_balanced == balanced
        assert _summary_of(found)["bottleneck"].startswith("none") == balanced
        assert ("What slows device" in text) != balanced
        assert (f"Device {found.bottleneck}, " in text) != balanced


def test_plan_and_explanation_count_the_same_columns():
    """Data-parallel and row-wise tables have no columns, in the text of a plan and in its explanation."""
    plan = laid_out(_task([32, 32]), DATA_PARALLEL, 1)
    found = explain(plan, H100)
    (devices,) = (section for section in sections(found) if section.title == "Devices")
    explained = devices.table.sort_values("device")["columns"].tolist()
    shown = [re.search(r"(\d+) columns", line)[1] for line in str(plan).splitlines()[2:]]
    assert explained == shown == ["0", "32"]
