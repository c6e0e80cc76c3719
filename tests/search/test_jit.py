import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from copy import copy
from pathlib import Path

import neuroshard.stages.search.jit as jit
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.jit import sources_digest
from neuroshard.stages.search.kernels.perturbation import explore
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.testing import toy_task

SEARCH = Path(jit.__file__).resolve().parent
FOLDERS = {"published", "space", "kernels"}


def test_compiled_functions_are_in_the_folders_of_the_digest():
    users = [path for path in SEARCH.rglob("*.py") if "search.jit import" in path.read_text() and path.name != "jit.py"]
    assert len(users) > 5
    assert {path.parent.name for path in users} == FOLDERS
    assert [path.name for path in SEARCH.rglob("*.py") if "from numba" in path.read_text()] == ["jit.py"]


def test_compiled_code_is_reused_until_a_compiled_source_changes(tmp_path):
    """Numba itself looks at the file of the function alone, not at those of the functions that it calls."""
    for folder in FOLDERS:
        shutil.copytree(SEARCH / folder, tmp_path / "copy" / folder)
    assert sources_digest(tmp_path / "copy") == sources_digest()
    shutil.copytree(tmp_path / "copy", tmp_path / "changed")
    for name, counts in (
        ("space/fixed_load.py", False),
        ("space/room.py", True),
        ("published/_greedy_jit.py", True),
        ("published/grid.py", False),
    ):
        path = tmp_path / "changed" / name
        before = sources_digest(tmp_path / "changed")
        path.write_text(path.read_text() + "\n")
        sources_digest.cache_clear()
        assert (sources_digest(tmp_path / "changed") != before) == counts
    kept = 0
    for path in (SEARCH / "kernels").glob("*.py"):
        module = importlib.import_module(f"neuroshard.stages.search.kernels.{path.stem}")
        for function in vars(module).values():
            if hasattr(function, "py_func"):
                assert function._cache._cache_file._source_stamp == sources_digest()
                kept += 1
    assert kept > 10


def test_compiled_code_of_other_sources_is_not_unpickled(tmp_path):
    """It may name modules that were renamed since: reading it would fail."""
    ours = copy(explore._cache._cache_file)
    ours._index_path = tmp_path / "index"
    ours._save_index({"key": "data"})
    assert ours._load_index() == {"key": "data"}
    theirs = ours._version.replace(sources_digest(), "0" * 64)
    assert theirs != ours._version
    ours._index_path.write_bytes(pickle.dumps(theirs) + b"no pickle")
    assert ours._load_index() == {}


_SEARCHED = """
import json, sys
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.space.room import put
from neuroshard.testing import toy_task
searcher = {"size": Greedy("size"), "improved": NeuroShard(improvement=Improvement(perturbations=1))}[sys.argv[1]]
print(json.dumps(searcher.find(toy_task(4), Simulator(CostModels.load("roofline:h100"))).plan.to_json()))
print(hasattr(put, "py_func"))
"""
_NOWHERE = """
import numba.core.caching as caching
def refuse(_self):
    raise PermissionError(13, "Permission denied")
caching._CacheLocator.ensure_cache_path = refuse
"""


def _searched(code, searcher, **variables):
    """Search in a process of its own; return the plan, whether kernels are compiled, and standard error."""
    done = subprocess.run(
        [sys.executable, "-c", code, searcher], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    plan, compiled = done.stdout.splitlines()
    return json.loads(plan), compiled == "True", done.stderr


def test_search_without_a_writable_cache_directory_warns_once():
    plan, compiled, err = _searched(_NOWHERE + _SEARCHED, "size")
    assert compiled
    assert err.count("NUMBA_CACHE_DIR") == 1
    assert (plan, True, "") == _searched(_SEARCHED, "size")


def test_kernels_in_plain_python_find_the_same_plan():
    plan, compiled, _ = _searched(_SEARCHED, "improved", NUMBA_DISABLE_JIT="1")
    assert not compiled
    searcher = NeuroShard(improvement=Improvement(perturbations=1))
    found = searcher.find(toy_task(4), Simulator(CostModels.load("roofline:h100")))
    assert plan == json.loads(json.dumps(found.plan.to_json()))


def test_local_search_is_compiled_once_for_all_numbers_of_devices_and_cost_models():
    """A second signature would be compiled during a user's first search, although `neuroshard compile` has run."""
    searcher = NeuroShard(improvement=Improvement(perturbations=1), acceptance=None)
    for model in ("cpu", "h100", "roofline:h100"):
        for devices in (1, 2):
            searcher.find(toy_task(6, devices), Simulator(CostModels.load(model)))
    assert len(explore.signatures) == 1
