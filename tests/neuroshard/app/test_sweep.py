"""The table that a sweep ends with."""

from io import StringIO

from rich.console import Console

from neuroshard.app.failures import FAILED, NO_PLAN, failure_of
from neuroshard.app.sweep import Job, compared, jobs_in, sweep_folder
from neuroshard.measure.store.run_directory import JobFigures
from neuroshard.plumbing.errors import InfeasibleError, UserError


def _shown(*jobs):
    console = Console(file=StringIO(), width=200)
    console.print(compared(jobs))
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines if line[0] in "│┃"]


def _job(number, *settings, costs=None, tasks="same", failure=None):
    return Job(number, settings, None if costs is None else JobFigures(tasks, tuple(costs), 0.5), failure)


def test_sweep_costs_are_means_over_tasks_that_every_solving_job_solved():
    first = _job(0, "searcher=a", "seed=1", costs=[1.0, 2.0, 90.0])
    second = _job(1, "searcher=b", "seed=1", costs=[3.0, 5.0, None])
    none = _job(2, "searcher=c", "seed=1", costs=[None, None, None])
    failed = _job(3, "searcher=[d]", "seed=1", failure=FAILED)
    assert _shown(first, second, none, failed) == [
        ["searcher", "solved", "predicted ms", "search s"],
        ["a", "3/3", "1.50", "0.500"],
        ["b", "2/3", "4.00", "0.500"],
        ["c", "0/3", "-", "0.500"],
        ["[d]", FAILED, "-", "-"],
    ]


def test_sweep_costs_of_a_job_ignore_which_tasks_jobs_with_other_tasks_solved():
    few = _job(0, "devices=2", costs=[8.0, None], tasks="on 2")
    many = _job(1, "devices=4", costs=[1.0, 3.0], tasks="on 4")
    assert [row[1:3] for row in _shown(few, many)[1:]] == [["1/2", "8.00"], ["2/2", "2.00"]]


def test_a_sweep_over_devices_shows_devices_memory_and_scope():
    figures = [JobFigures(f"on {n}", (8.0 / n,), 0.5, n, n << 30, ("kernels and exchanges",)) for n in (2, 4)]
    jobs = [Job(number, (f"n={f.devices}",), f) for number, f in enumerate(figures)]
    failed = Job(2, ("n=8",), failure=FAILED)
    rows = _shown(*jobs, failed)
    assert [row[-2:] for row in rows] == [["devices", "memory headroom"], ["2", "2 GiB"], ["4", "4 GiB"], ["-", "-"]]
    assert "kernels and exchanges" in str(compared(jobs).caption)
    assert "memory headroom" not in _shown(jobs[0])[0]


def test_sweep_table_shows_the_result_of_jobs_without_costs():
    assert _shown(_job(0, "seed=1"), _job(1, "seed=2", failure="failed")) == [
        ["seed", "result"],
        ["1", "done"],
        ["2", "failed"],
    ]


def test_a_sweep_of_one_job_has_a_table_with_its_settings():
    """The job may have run on another machine, where nobody sees what it printed."""
    job = _job(0, "searcher=a", "out=found", costs=[1.0, 2.0])
    assert _shown(job) == [["searcher", "solved", "predicted ms", "search s"], ["a", "2/2", "1.50", "0.500"]]


def test_jobs_are_kept_in_the_sweeps_folder_in_order():
    infeasible = failure_of(InfeasibleError("memory-full", "full"))
    jobs = [_job(10, "a=x=y", costs=[1.5, None]), _job(2, failure=infeasible)]
    with sweep_folder(["-m", "searcher=a,b"]) as folder:
        for job in jobs:
            job.keep(folder)
        assert jobs_in(folder) == jobs[::-1]
    assert jobs[0].setting("a") == "x=y"
    assert jobs[1].failure == NO_PLAN
    assert failure_of(UserError("rows-wrong", "rows is 0")) == FAILED
    assert not folder.exists()


def test_sweep_folder_of_slurm_jobs_is_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with sweep_folder(["-m", "hydra/launcher=submitit_slurm"]) as folder:
        _job(0).keep(folder)
    assert folder.parent == tmp_path / "runs" / "sweeps"
    assert len(jobs_in(folder)) == 1


def test_files_of_the_user_stay_in_a_folder_that_is_given(tmp_path):
    _job(0).keep(tmp_path)
    _job(1).claim(tmp_path, str(tmp_path / "out-1"))
    for name in ("out-notes.txt", "job-notes.json", "job-00000-old.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "out-1").mkdir()
    with sweep_folder(["-m", f"hydra.sweep.dir={tmp_path}"]):
        left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["job-00000-old.json", "job-notes.json", "out-1", "out-notes.txt"]


def test_sweep_folder_uses_the_directory_that_is_given(tmp_path):
    with sweep_folder(["-m", f"hydra.sweep.dir={tmp_path}"]) as folder:
        assert folder == tmp_path
