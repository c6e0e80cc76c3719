"""Figures in README and docs are in files written by scripts or in the archive, and no table is made twice."""

import importlib
import re
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import h100
import pictures
import results
import views
from shared import DEFAULT_PLANNER, Made, with_tables

ROOT = Path(__file__).parents[2]
GENERATED = {"gpu_kernels", "gpu_steps", "gpu_predicted"}
REFERENCE = ROOT / "docs" / "reference"  # says settings and defaults
ANALYTIC = {"roofline", "roofline_errors", "roofline_exchanges"}  # beside published points, by a test of their own
PAGES = (
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.stem not in GENERATED | ANALYTIC and REFERENCE not in page.parents
    ),
)
TABLES = sorted((ROOT / "docs" / "results").glob("*.csv"))
FIGURE = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?%(?! interval)|\d+\.\d+(?![\w.]*\w))")
VERSION = re.compile(r"(?:Python|torch|TorchRec|FBGEMM|[Ss]ections?) \d[\d.]*")  # or a section of a paper
PUBLISHED = {"23.8%", "19%"}  # in the abstracts of the papers, which docs/how-to/reproduce.md quotes
ADDRESS = re.compile(r"https?://[^)\s]+")


def _paragraphs(page):
    """Return paragraphs, list items and table rows of a page, without code."""
    text = re.sub(r"```.*?```|<!-- table.*?<!-- end -->|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [part for part in re.split(r"\n\n|\n(?=- |\d\. |\| )", text) if part.strip()]


def _linked(page, paragraph):
    """Return the texts of the pages to which a paragraph links, without the pages of results."""
    targets = (page.parent / target for target in re.findall(r"\]\(([^)#]+\.md)", paragraph) if "://" not in target)
    return [target.read_text() for target in targets if target.resolve() not in results.PAGES]


def _quoted():
    for page in PAGES:
        for paragraph in _paragraphs(page):
            for figure in FIGURE.findall(ADDRESS.sub("", VERSION.sub("", paragraph))):
                if page.stem == "reproduce" and figure in PUBLISHED:
                    continue
                yield pytest.param(page, paragraph, figure, id=f"{page.name}-{figure}")


@pytest.mark.parametrize(("page", "paragraph", "figure"), _quoted())
def test_figures_quoted_in_pages_are_in_a_results_table_or_a_linked_page(page, paragraph, figure):
    sources = [path.read_text() for path in TABLES] + _linked(page, paragraph)
    assert any(re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", text) for text in sources), paragraph


def test_pages_count_faster_models_as_the_table_of_steps_does():
    """A model counts as faster if its ratio is below 1 by more than two standard errors."""
    steps = pd.read_csv(results.TABLES / "steps.csv", comment="#").iloc[:-1]  # but the mean
    ratio = steps[f"trained step / {DEFAULT_PLANNER}"].astype(float)
    noise = steps["two equal plans differ by"].str.rstrip("%").astype(float) / 100
    words = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    faster, slower = words[(ratio < 1 - 2 * noise).sum()], words[(ratio > 1 + 2 * noise).sum()]
    counted = {page.name: re.findall(rf"({'|'.join(words)}) train faster", page.read_text()) for page in PAGES}
    assert counted["cpu_steps.md"] == [faster]
    assert {word for found in counted.values() for word in found} == {faster}
    assert slower == "none"


def test_pages_name_the_torchrec_baseline_by_planner_and_settings():
    """The words "TorchRec's plan" could be any of three: pages and tables name the planner and its settings."""
    for page in (*PAGES, *h100.PAGES):
        text = " ".join(page.read_text().split())
        assert not re.search(r"TorchRec's (?:own )?plan\b", text), page.name
        assert not re.search(r"\| [^|]*TorchRec's planner[^|]*, ms \|", text), page.name


def test_results_pages_contain_the_generated_tables():
    for page, text in results.pages().items():
        assert text == page.read_text(), "python benchmarks/results.py"
    text = "".join(page.read_text() for page in results.PAGES)
    drawn = {"plan", "step_plans", "tiers", "headline"}
    shown = re.findall(r"<!-- table (\w+) -->", text)
    assert set(shown) >= set(views.VIEWS)
    assert {*(views.view(name).table for name in shown), *drawn} == set(results.MAKERS)
    assert {path.stem for path in TABLES} == set(results.MAKERS)


@pytest.mark.parametrize("name", ["headline", "summary"])
def test_ratios_match_the_tables_and_data_they_summarise(name, tmp_path):
    made = results.MAKERS[name](tmp_path, False)
    text = "".join(line for line in (results.TABLES / f"{name}.csv").open() if not line.startswith("# "))
    assert made.frame.to_csv(index=False) == text, f"remove docs/results/{name}.csv, and run make results"


def test_h100_pages_contain_the_measured_figures():
    text = "".join(page.read_text() for page in h100.PAGES)
    assert re.findall(r"<!-- table (\w+) -->", text) == list(h100.TABLES)
    cheap = {name: partial(h100.shown, name) for name in ("points", "models", "moved", "plans")}
    assert with_tables(text, cheap) == text, "python benchmarks/h100.py"


@pytest.mark.slow
def test_h100_pages_contain_the_tables_of_trained_steps():
    text = "".join(page.read_text() for page in h100.PAGES)
    trained = {name: partial(h100.shown, name) for name in ("steps", "steps_little", "steps_default", "methods")}
    assert with_tables(text, trained) == text, "python benchmarks/h100.py"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_results_tables_record_date_machine_models_and_noise(path):
    assert set(results.facts(path)) == {"made", "machine", "models", "noise"}
    assert results.facts(path)["models"] == results.models_of(path.stem), "make results"


def test_results_table_is_made_again_only_if_the_models_change(tmp_path, monkeypatch):
    made = []

    def maker(_work, _small):
        made.append(1)
        return Made(pd.DataFrame({"a": ["1"]}), "None.")

    monkeypatch.setitem(results.MAKERS, "one", maker)
    for models in ("x", "x", "y"):
        monkeypatch.setattr(results, "models_of", lambda _, models=models: models)
        results.make("one", tmp_path, tmp_path, small=True)
    assert len(made) == 2
    assert results.as_markdown(tmp_path / "one.csv", lambda frame: frame).startswith("| a |\n| --- |\n| 1 |\n")


def test_pictures_are_drawn_from_the_tables(tmp_path):
    pictures.draw(results.TABLES, tmp_path)
    for name in pictures.PICTURES:
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_drawing_diagrams_writes_every_picture(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    diagrams = importlib.import_module("diagrams")
    diagrams.draw(tmp_path)
    for name in diagrams.PICTURES:
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
