"""A further sharding type needs one file, its name and its entry in the list; tested with a made-up type."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / "tests" / "kit" / "further_form"
FORM = "host_data_parallel"
SHOWN = FORM.replace("_", "-")


def _edited(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def _house(folder):
    """A copy of the product with one more sharding type and new settings files; most of its folders are links."""
    package = folder / "neuroshard"
    package.mkdir()
    for entry in (ROOT / "neuroshard").iterdir():
        if entry.name in ("words", "layouts", "plumbing", "conf"):
            shutil.copytree(entry, package / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (package / entry.name).symlink_to(entry)
    for stage in ("conf", "search", "augment", "pretrain", "tests"):
        (folder / stage).symlink_to(ROOT / stage)
    shutil.copy(KIT / "host_copies.py", package / "layouts")
    word = '    DATA_PARALLEL = "data_parallel"\n'
    _edited(package / "words" / "form.py", word, f'{word}    HOST_COPIES = "{FORM}"\n')
    every, first = package / "layouts" / "__init__.py", "from neuroshard.layouts.layout import"
    _edited(every, first, f"from neuroshard.layouts.host_copies import HostCopies\n{first}")
    _edited(every, "ROW_WISE_LAYOUT, DATA_PARALLEL_LAYOUT)", "ROW_WISE_LAYOUT, DATA_PARALLEL_LAYOUT, HostCopies())")
    _run(folder, "-m", "neuroshard.plumbing.settings_files", str(package / "conf" / "settings"))  # as `make docs` does
    return folder


def _run(house, *arguments):
    """Run Python in this copy of the product; return its output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=house, env=os.environ | {"PYTHONPATH": str(house)},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("further form")]  # its tests read what one process found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Run the exam in a new process, in which the sharding type exists from the first import on; return its results."""
    house = _house(tmp_path_factory.mktemp("house"))
    printed = _run(house, str(KIT / "exam.py"), str(tmp_path_factory.mktemp("out")))
    return json.loads(printed.splitlines()[-1])


def test_searches_choose_a_further_type_if_it_is_cheapest(found):
    assert found["forms"][FORM] > 0
    assert found["violations"] == []
    cost, columns = found["ms"]
    assert cost < columns


def test_estimates_of_a_further_type_equal_plan_costs(found):
    estimated, cost = found["estimates"]
    assert estimated == pytest.approx(cost)


def test_plans_keep_a_further_type_on_disk_and_when_improved(found):
    assert found["again"]
    assert found["replanned"][FORM] == found["forms"][FORM]


def test_reports_and_pictures_show_a_further_type(found):
    assert f"{found['forms'][FORM]} {SHOWN}" in found["lines"]
    assert "(host copy)" in found["lines"]
    assert SHOWN in found["page"]
    assert any(change.endswith(f", {SHOWN}") for change in found["changes"])
    assert found["picture"]


def test_systems_without_a_further_type_refuse_it_and_get_other_plans(found):
    refusing = {name for name, why in found["refused"].items() if why is not None}
    assert refusing == {"torchrec", "sok", "hugectr"}
    for code, text in (found["refused"][name] for name in refusing):
        assert code == "export-table-unsupported"
        assert FORM in text
    code, text = found["not trained"]
    assert code == "plan-sharding-type-unsupported"
    assert FORM in text
    assert {name for name, forms in found["planned"].items() if FORM in forms} == {"json"}
    assert set(found["torchrec"]) <= {"column_wise", "row_wise", "data_parallel"}


def test_further_type_saves_memory_if_column_wise_plans_do_not_fit(found):
    assert found["short"] == {FORM: 1, "column_wise": 4}


def test_further_type_is_drawn_for_measurement_except_in_torchrec_steps(found):
    assert found["calls drawn"][FORM] > 0
    assert found["plans drawn"].keys() == {"column_wise", "row_wise", "data_parallel"}


def test_further_type_is_measured_and_learned(found):
    assert found["measured"][FORM] > 100
    assert found["errors"][f"compute.{FORM}"] < 0.15


def test_learned_models_choose_a_further_type_if_it_pays(found):
    assert found["found"]["few rows"] == found["true"]["few rows"] == {FORM: 16}
    assert FORM not in found["found"]["many rows"].keys() | found["true"]["many rows"].keys()


def test_further_type_costs_as_predicted_and_less_than_the_best_other_plan(found):
    measured, without = found["evaluated"]
    for part in ("compute", "total"):
        assert found["predicted"][part] == pytest.approx(measured[part], rel=0.25), part
    assert measured["total"] < 0.8 * without["total"]


def test_explanation_shows_a_sharding_type_added_by_a_user(found):
    assert f"16 {SHOWN}" in found["explained"]


def test_real_kernels_look_up_the_rows_of_the_plan(found):
    looked_up, load = found["looked up"]
    assert looked_up == pytest.approx(load, rel=0.2)


def test_random_models_of_the_test_kit_know_a_further_type(found):
    assert FORM in found["known to the kit"]
