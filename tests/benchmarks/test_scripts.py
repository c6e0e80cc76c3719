"""Scripts that no other test runs can be imported."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_benchmark_scripts_import_without_errors(script, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)
    assert "__name__" in runpy.run_path(str(script), run_name="imported")
