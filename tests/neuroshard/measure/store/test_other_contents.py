"""Directories with files of another stage are refused and left unchanged."""

import pytest

from neuroshard.measure.store.run_directory import RunDirectory, check_nothing_else
from neuroshard.stages.pretrain.fit_additive import Regression
from neuroshard.stages.pretrain.paper import PaperComm
from neuroshard.stages.pretrain.pretrain import Pretrain
from tests.kit.messages import refused

MARKS = ("run.json", "settings.json", "manifest.json", "bundle.json", "policy.json")


@pytest.mark.parametrize("mark", MARKS)
def test_check_nothing_else_refuses_a_directory_with_the_file_of_another_stage(tmp_path, mark):
    (tmp_path / mark).write_text("{}")
    with refused("out-other-contents", names=[tmp_path, f"({mark})"]) as caught:
        check_nothing_else(tmp_path, ())
    assert "out=DIRECTORY" in caught.value.message.remedy
    check_nothing_else(tmp_path, {mark})


@pytest.mark.parametrize("mark", ["manifest.json", "bundle.json"])
def test_holding_a_run_directory_with_measurements_or_models_is_refused(tmp_path, mark):
    (tmp_path / mark).write_text("{}")
    with refused("out-other-contents", names=[f"({mark})"]), RunDirectory(tmp_path).held():
        pass
    assert [path.name for path in tmp_path.iterdir()] == [mark]


@pytest.mark.parametrize("mark", ["manifest.json", "run.json"])
def test_pretraining_into_a_directory_with_measurements_or_a_run_is_refused(tmp_path, mark):
    (tmp_path / mark).write_text("{}")
    fitters = Regression(), PaperComm()
    with refused("out-other-contents", names=[f"({mark})"]):
        Pretrain(str(tmp_path / "data"), str(tmp_path), *fitters).run()
