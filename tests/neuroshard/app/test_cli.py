"""The command line: user errors are one clear line with exit code 2, and write no files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import neuroshard as ns
from neuroshard.app import cli
from neuroshard.app.failures import FAILED, NO_PLAN
from neuroshard.models import Card, save_bundle
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import exclusive
from neuroshard.testing import random_models, toy_task
from neuroshard.words.fingerprint import Fingerprint
from tests.kit.commands import done, run_command
from tests.kit.messages import check, refused_command, reported
from tests.kit.plans import whole

TABLES = "name,rows,dim,pooling_factor\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a bundle in `models/` and a table file outside it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    save_bundle(tmp_path / "models", random_models(), Card())
    (tmp_path / "tables.csv").write_text(TABLES + "a,100,16,2\nb,50,8,1\nc,70,32,3\n")
    return tmp_path


def _search(here, *more):
    return (
        "search",
        f"model={here}/models",
        "tables=user_file",
        f"tables.path={here}/tables.csv",
        "batch_size=256",
        *more,
    )


def _failed(capsys, code, *arguments, names=()):
    """Run a command that must end with a user error; return standard output, standard error and the messages."""
    with reported() as messages:
        exit_code, out, err = run_command(capsys, *arguments)
    assert exit_code == 2, err
    check(messages[-1], code, names=names)
    assert err.splitlines()[-1] == f"neuroshard: error: {messages[-1]}"  # after the progress bar
    assert "Traceback" not in out + err
    assert "neuroshard-defect" not in [message.code for message in messages]
    return out, err, messages


def _refused(capsys, code, *arguments, where=None, names=()):
    message = refused_command(capsys, code, *arguments, where=where, names=names)
    assert list(Path().iterdir()) == []
    return message


def test_usage_without_arguments_names_every_command(capsys):
    out = done(capsys)
    assert all(command in out for command in cli.COMMANDS)


def test_search_finds_and_writes_a_plan(here, capsys):
    out = done(capsys, *_search(here, "out=found"))
    assert "1 of 1 task" in out
    assert Path("found/plans/task-0000.json").exists()
    before = Path("found/results.parquet").stat().st_mtime_ns
    assert done(capsys, *_search(here, "out=found")) == out
    assert Path("found/results.parquet").stat().st_mtime_ns == before
    for other, name in (
        ("searcher=random", "'Random'"),
        ("searcher.beam_width=2", "beam_width="),
        ("topology.memory_bytes=1000000", "tasks"),
    ):
        _failed(capsys, "out-begun-otherwise", *_search(here, "out=found", other), names=["found", name])


def test_writing_to_a_full_disk_is_refused_in_one_line(here, capsys, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("neuroshard.plans.plan.write_json", full)
    _failed(capsys, "system-refused", *_search(here, "out=found"), names=["[Errno 28] No space left on device"])


def test_sweep_writes_one_run_directory_per_combination(here, capsys):
    done(capsys, *_search(here, "-m", "searcher=random,dim_greedy"))
    assert [path.name for path in sorted(Path("runs/search").iterdir())] == ["0001-random", "0002-dim_greedy"]


def test_search_succeeds_with_the_memory_that_the_out_of_memory_error_advises(here, capsys):
    sizes = ["16.6 KiB", 4, "1.46 KiB", "5.86 KiB"]
    short = _search(here, "topology.memory_bytes=1500", "out=short")
    _, _, messages = _failed(capsys, "tables-exceed-devices", *short, names=sizes)
    (message,) = messages
    assert "4.23 KiB" in message.remedy
    done(capsys, *_search(here, "topology.memory_bytes=4.23KiB", "out=enough"))


def test_cli_reports_a_malformed_table_file_in_one_line(here, capsys):
    (here / "tables.csv").write_text(f"{TABLES}x,-1,16,2\n")
    _refused(capsys, "value-outside-limits", *_search(here), names=["rows", -1])


@pytest.mark.parametrize(
    ("code", "names", "settings"),
    [
        ("unknown-name", ["'neurosard'", "'neuroshard'"], ["searcher=neurosard"]),
        ("unknown-name", ["'searcher.beam_with'", "'searcher.beam_width'"], ["searcher.beam_with=2"]),
        ("unknown-name", ["'topology.num_devices'"], ["topology.num_device=2"]),
        ("unknown-name", ["'topolgy.num_devices'", "'topology.num_devices'"], ["topolgy.num_devices=2"]),
        ("unknown-name", ["'searcher.forms'", "searcher.sharding_types"], ["searcher.forms=[columns]"]),
        ("unknown-name", ["'kernel'", "'kernels'"], ["verify=kernel"]),
        ("unknown-name", ["'cup'", "'cpu'"], ["model=cup"]),
        ("unknown-name", ["tables"], ["tables=."]),
        ("unknown-name", ["'table'", "'tables'"], ["constraints.rules=[{table: a}]"]),
        ("unknown-name", ["'soc'", "'sok'"], ["target=soc"]),
        ("hydra-refused", ["'hydra.launcher.nothing'"], ["-m", "hydra.launcher.nothing=1"]),
        ("unknown-name", ["'nothing'"], ["-m", "hydra/launcher=nothing"]),
        ("setting-is-group", ["searcher is {'foo': 3}", "searcher.NAME="], ["+run.searcher.foo=3"]),
        ("unknown-name", ["constraints 'mine/nothing'"], ["constraints=mine/nothing"]),
        ("argument-malformed", ["'topology'"], ["topology"]),
        ("setting-is-group", ["topology", "8"], ["topology=8"]),
        ("setting-is-group", ["topology", None], ["topology=null"]),
        ("setting-is-group", ["searcher.grid"], ["searcher.grid=2"]),
        ("setting-is-group", ["searcher.acceptance"], ["searcher.acceptance=3"]),
        ("value-outside-limits", ["candidate_plans", 0, 1], ["verify=kernels", "candidate_plans=0"]),
        ("value-outside-limits", ["passes", 1, 2], ["verify=kernels", "passes=1"]),
        ("value-outside-limits", ["beam_width", "'many'"], ["searcher.beam_width=many"]),
        ("value-outside-limits", ["method", "'a/b'"], ["method=a/b"]),
        ("value-outside-limits", ["method", "'nnn", 200], [f"method={'n' * 300}"]),
        ("value-outside-limits", ["out", "[1, 2]"], ["out=[1,2]"]),
        ("value-outside-limits", ["out", "''", 1], ["out="]),
        ("value-outside-limits", ["model", "{'a': 1}"], ["model={a: 1}"]),
        ("value-outside-limits", ["batch_size", -1], ["batch_size=-1"]),
        ("value-outside-limits", ["topology.num_devices", 0], ["topology.num_devices=0"]),
        ("value-outside-limits", ["tables.zipf_exponent", -1], ["tables.zipf_exponent=-1"]),
        ("value-outside-limits", ["searcher.grid.max_factor", 0], ["searcher.grid.max_factor=0"]),
        ("value-outside-limits", ["num_devices", 10000000, 4096], ["topology.num_devices=10000000"]),
        ("models-devices-differ", [4, 2], ["topology.num_devices=2"]),
        ("file-missing", ["nowhere/bundle.json"], ["model=./nowhere"]),
        (
            "file-missing",
            ["autoshard, dreamshard", "nowhere/policy.json"],
            ["searcher=dreamshard", "searcher.policy=nowhere"],
        ),
        ("topology-sizes-count", ["memory_bytes", 2, 4], ["topology.memory_bytes=[1,2]"]),
        ("config-value-missing", ["searcher.start"], ["searcher=replan"]),
        (
            "size-unreadable",
            ["topology.memory_bytes", "99999999999999999999", "2^60"],
            ["topology.memory_bytes=99999999999999999999"],
        ),
        ("size-unreadable", ["'lots'", "34359738368, 32GiB", "16GB"], ["topology.memory_bytes=lots"]),
        ("sweep-without-flag", ["'searcher=random,dim_greedy'", "-m"], ["searcher=random,dim_greedy"]),
        (
            "sweep-setting-of-other",
            ["searcher.beam_width"],
            ["-m", "searcher=neuroshard,random", "searcher.beam_width=1,3"],
        ),
        ("sweep-setting-of-other", ["searcher.policy"], ["-m", "searcher=random,dreamshard", "searcher.policy=x"]),
        (
            "unknown-name",
            ["'searcher.polcy'", "'searcher.policy'"],
            ["-m", "searcher=random,dreamshard", "searcher.polcy=x"],
        ),
        ("target-not-found", ["nowhere.Searcher"], ["searcher._target_=nowhere.Searcher"]),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else "",
)
def test_search_with_wrong_settings_is_refused_in_one_line(here, capsys, code, names, settings):
    _refused(capsys, code, *_search(here, *settings), names=names)


@pytest.mark.parametrize(
    ("code", "names", "arguments"),
    [
        ("unknown-name", ["'serach'", "'search'"], "serach"),
        ("unknown-name", ["'--cofnig-dir'", "--config-dir"], "search --cofnig-dir x"),
        ("flag-unknown", ["'--searcher'", "searcher=random"], "search --searcher=random"),
        ("config-value-missing", ["tables.path"], "search tables=user_file"),
        ("config-value-missing", ["tables.path"], "search tables=dlrm"),
        ("config-value-missing", ["plans"], "explain"),
        ("file-missing", ["t.json"], "search tasks=t.json"),
        ("file-missing", ["nowhere/manifest.json"], "pretrain data=nowhere"),
        ("models-names-count", [2, 1], "models a b"),
        ("unknown-name", ["'nothing'", "roofline:h100"], "models nothing"),
        ("unknown-name", ["'random'", "autoshard, dreamshard"], "train-policy searcher=random"),
        ("value-outside-limits", ["runs", 3], "report runs=3"),
        ("value-outside-limits", ["out", 1], "report runs=a out=1"),
        ("value-outside-limits", ["max_samples", -1], "pretrain max_samples=-1"),
        ("value-outside-limits", ["members", 64], "pretrain compute_model.members=1_000"),
        ("value-outside-limits", ["parts", 9223372036854775807], "pretrain comm_model.parts=9223372036854775807"),
        ("setting-is-group", ["tasks.memory"], "search tasks.memory=5"),
        ("setting-is-group", ["tasks.tables"], "search tasks.tables=x"),
    ],
)
def test_cli_reports_wrong_arguments_in_one_line(here, capsys, code, names, arguments):
    _refused(capsys, code, *arguments.split(), names=names)


def test_sweep_runs_other_jobs_if_one_job_cannot_be_built(here, capsys):
    sweep = ("-m", "searcher=random", "topology.num_devices=4,10000000", "out='x${hydra:job.num}'")
    out, _, (job, _) = _failed(capsys, "sweep-jobs-failed", *_search(here, *sweep), names=[1, 2])
    check(job, "value-outside-limits", names=["num_devices", 10000000])
    assert job.where.startswith("job 1 (")
    assert re.search(rf"10000000\W+{FAILED}", out)
    assert Path("x0/results.parquet").exists()


def test_cli_reports_a_truncated_bundle_in_one_line(here, capsys):
    (path,) = (here / "models").glob("weights-*")
    path.write_bytes(path.read_bytes()[:100])
    _refused(capsys, "bundle-weights-damaged", *_search(here), names=[path.name])


def test_cli_reports_a_malformed_plan_in_one_line(here, capsys):
    (here / "plan.json").write_text("{")
    _refused(capsys, "json-unreadable", "evaluate", f"{here}/plan.json", where=f"plan {here}/plan.json")


def test_evaluating_a_plan_that_leaves_out_columns_is_refused(here, capsys):
    task = toy_task(3)
    content = whole(task).to_json()
    (here / "plan.json").write_text(json.dumps(content | {"placements": content["placements"][1:]}))
    _refused(capsys, "plan-shards-gap", "evaluate", f"{here}/plan.json", names=[repr(task.tables[0].name)])


def test_search_help_lists_searchers_and_settings(capsys, here):
    code, out, _ = run_command(capsys, "search", "--help")
    assert code == 0
    assert "dim_greedy" in out
    assert "memory_bytes" in out
    assert "--cfg job" in out


def test_shell_completion_offers_commands_and_settings(tmp_path):
    """Hydra writes the completion script, and the script offers NeuroShard's commands."""
    lines = ("neuroshard se", "neuroshard search searcher=siz", "neuroshard search topology.mem", "neuroshard ex")
    asked = "\n".join(
        f'COMP_LINE="{line}" COMP_CWORD={line.count(" ")}; hydra_bash_completion; echo "${{COMPREPLY[@]}}"'
        for line in lines
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = f'eval "$(neuroshard -sc install=bash)"\n{asked}'
    shown = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    first, second, third, fourth = shown.stdout.split("\n")[:4]
    assert first == "search"
    assert set(second.split()) == {"searcher=size_greedy", "searcher=size_lookup_greedy"}
    assert third == "topology.memory_bytes="
    assert set(fourth.split()) == {"explain", "export"}


def test_help_option_of_models_prints_usage(here, capsys):
    for flag in ("--help", "-h"):
        out = done(capsys, "models", flag)
        assert out.startswith("neuroshard models: ")
        assert out.endswith("usage: neuroshard models [NAME] [format=json]\n")


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["--cfg", "job", "--resolve"], ["--info", "defaults"]])
def test_hydra_output_options_print_the_output_of_hydra(here, capfd, flags):
    cli.main(["search", *flags, "searcher=random"])
    assert "Random" in capfd.readouterr().out


def test_hydra_full_error_variable_raises_the_error_with_its_trace(here, monkeypatch, capsys):
    for name in ("HYDRA_FULL_ERROR", "NEUROSHARD_FULL_ERROR"):  # the command sets the second one by the first
        monkeypatch.setenv(name, "1")
    with pytest.raises(UserError):
        cli.main(["search", "searcher=neurosard"])


def test_search_accepts_null_or_a_mapping_for_a_group_of_settings(here, capsys):
    done(capsys, *_search(here, "searcher.acceptance=null", "searcher.grid={points: 1}", "out=a"))


def test_export_command_takes_the_path_of_a_plan(here, capsys):
    done(capsys, *_search(here, "searcher=random", "out=found"))
    plan = "found/plans/task-0000.json"
    _failed(capsys, "config-value-missing", "export", plan, names=["to"])
    done(capsys, "export", plan, "to=json", "out=plain.json")
    assert Path("plain.json").exists()


def test_search_keeps_constraints_and_memory_settings_of_the_command_line(here, capsys):
    rules = ["constraints.apart=[[a,b,c]]", "constraints.pinned=[{table: c, dim: 8, devices: [3]}]"]
    memory = ["memory=training", "topology.memory_bytes=[120000,120000,120000,70000]", "topology.reserved_bytes=1000"]
    done(capsys, *_search(here, "out=found", *rules, *memory))
    plan = Plan.load("found/plans/task-0000.json")
    assert plan.violations == ()
    assert plan.task.memory.optimizer == "rowwise_adagrad"
    assert [t.dim for t in plan.device_tables[3]] == [8]


def test_search_with_a_rule_that_matches_no_table_is_refused(here, capsys):
    (here / "rules.yaml").write_text("rules: [{tables: z*, max_shards: 1}]\n")
    file = ["constraints=file", f"constraints.path={here}/rules.yaml"]
    _refused(capsys, "rule-matches-no-table", *_search(here, *file), names=["'z*'"])


def test_replanning_prints_moves_and_predicted_savings(here, capsys):
    done(capsys, *_search(here, "out=first", "searcher=random"))
    start = f"searcher.start={Path.cwd()}/first/plans/task-0000.json"
    out = done(capsys, *_search(here, "out=second", "searcher=replan", start))
    assert "moves" in out
    assert "predicted" in out


def test_models_command_lists_bundles_and_prints_cards(here, capsys):
    out = done(capsys, "models")
    assert "cpu" in out
    assert all(f"{setting}=" in out for setting in ("framework", "dense_ms", "exchange_dtype", "optimizer"))
    assert "roofline:h200" in out
    out = done(capsys, "models", "cpu")
    assert {"hardware", "data", "metrics"} <= json.loads(out).keys()
    out = done(capsys, "models", "roofline:h100")
    told = json.loads(out)
    assert told["figures"]["memory_gb_per_s"] == 3350.0
    assert told["beside published points"]["alltoall, 8 devices"].startswith("21 published, ")
    assert "no test" in told["beside published points"]["forward, device"]  # one point, which set the figure
    assert "no test" not in told["beside published points"]["alltoall, 8 devices"]


def test_search_with_torchrecs_planner_writes_a_search_run(capsys, here):
    fewer = ("searcher.split_factors=[2]", "searcher.sort_by=[perf]", "out=found")
    out = done(capsys, *_search(here, "searcher=torchrec", *fewer))
    assert "1 of 1 task" in out
    assert json.loads(Path("found/run.json").read_text())["searcher"] == "torchrec"


FEW_TASKS = ("tables.num_tables=20", "tasks.draw.count=6", "tasks.draw.min_tables=5", "tasks.draw.max_tables=5")
BRIEFLY = ("learner.updates=1", "learner.cost_network.placements=5", "learner.cost_network.steps=2")


def _train(here, *more):
    return ("train-policy", f"model={here}/models", "batch_size=256", "num_valid=2", *FEW_TASKS, *BRIEFLY, *more)


@pytest.mark.parametrize("searcher", ["dreamshard", "autoshard"])
def test_trained_policy_is_used_by_a_search(capsys, here, searcher):
    out = done(capsys, *_train(here, f"searcher={searcher}", "learner.rounds=2", "out=trained"))
    assert "best of 2 rounds" in out
    out = done(capsys, *_search(here, f"searcher={searcher}", "searcher.policy=trained", "out=found"))
    assert "1 of 1 task" in out


@pytest.mark.parametrize(
    "command",
    [
        ("collect", "num_compute_samples=1", "out=busy"),
        ("pretrain", f"data={Path(__file__).resolve().parents[3] / 'benchmarks' / 'data' / 'cpu'}", "out=busy"),
        ("train-policy", "tables.num_tables=40", "tasks.draw.count=3", "num_valid=1", "out=busy"),
    ],
    ids=lambda command: command[0],
)
def test_command_into_a_directory_in_use_is_refused(here, capsys, command):
    with exclusive(Path("busy")):
        _failed(capsys, "out-in-use", *command, names=["busy", "out=DIRECTORY"])
        assert [path.name for path in Path("busy").iterdir()] == [".lock"]
    assert not Path("busy").exists()  # neither left anything there


@pytest.mark.slow
def test_sweep_with_joblib_writes_every_run_and_can_be_repeated(capsys, here):
    parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "out='swept/${method}'")
    for _ in range(2):
        done(capsys, *_search(here, "-m", "searcher=random,dim_greedy", *parallel))
    found = {json.loads(path.read_text())["searcher"] for path in Path("swept").rglob("run.json")}
    assert found == {"random", "dim_greedy"}


def test_version_option_prints_the_version(capsys):
    assert run_command(capsys, "--version") == (0, f"neuroshard {ns.__version__}\n", "")


def test_search_with_default_settings_finds_a_plan_for_a_table_file(here, capsys):
    assert "1 of 1 task" in done(capsys, "search", "searcher=size_greedy")
    out = done(capsys, "search", f"tables={here}/tables.csv", "searcher=random")
    assert "3 tables: 3 table-wise on 4 devices" in out
    assert "device 0: " in out


def test_sweep_runs_other_jobs_after_a_job_without_a_plan(here, capsys):
    sweep = ("-m", "topology.memory_bytes=1KiB,1GiB", "searcher=random", "out=swept/${topology.memory_bytes}")
    out, _, messages = _failed(capsys, "sweep-jobs-failed", *_search(here, *sweep), names=[1, 2])
    assert out.strip().startswith("The sweep")  # jobs print nothing but their errors
    job, _ = messages
    check(job, "tables-exceed-devices")
    assert job.where.startswith("job 0 (")
    assert ",topology.memory_bytes=1KiB,searcher=random,out=swept/${topology.memory_bytes})" in job.where
    table = out[out.index("The sweep") :]
    assert re.search(r"topology.memory_bytes\W+solved\W+predicted ms\W+search s", table)  # not searcher: it is the same
    assert re.search(rf"1KiB\W+{NO_PLAN}", table)
    assert re.search(r"1GiB\W+1/1\W+[\d.]+\W+[\d.]+", table)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(["out='${hydra:runtime.output_dir}/run'"], marks=pytest.mark.slow),
        ["out=run", "hydra.job.chdir=true"],
    ],
)
def test_sweep_refuses_output_in_its_temporary_folder_and_keeps_it_in_a_given_folder(here, capsys, output):
    sweep = _search(here, "-m", "searcher=random,dim_greedy", *output)
    _, _, messages = _failed(capsys, "sweep-jobs-failed", *sweep, names=[2, 2])
    for message in messages[:-1]:
        check(message, "sweep-out-temporary")
    done(capsys, *sweep, f"hydra.sweep.dir='{here}/kept'")
    assert sorted(path.parent.parent.name for path in (here / "kept").rglob("run.json")) == ["0", "1"]


def test_sweep_refuses_a_second_job_with_the_same_output_directory(here, capsys):
    sweep = _search(here, "-m", "searcher=random", "searcher.seed=0,1", "out=same")
    _, _, (job, _) = _failed(capsys, "sweep-jobs-failed", *sweep, names=[1, 2])
    check(job, "sweep-out-shared", names=["out=same", "job 0"])
    done(capsys, *sweep[:-1], job.remedy[job.remedy.index("'out=") :].strip("'"))
    assert json.loads(Path("same/settings.json").read_text())["settings"]["seed"] == 0


def test_sweep_shows_only_its_own_jobs_if_its_folder_has_been_used_before(here, capsys):
    folder = f"hydra.sweep.dir='{here}/sweep'"
    first = _search(
        here, "-m", "searcher=random", "topology.memory_bytes=1KiB,1GiB", "out=first-${hydra:job.num}", folder
    )
    _failed(capsys, "sweep-jobs-failed", *first, names=[1, 2])
    out = done(capsys, *_search(here, "-m", "searcher=dim_greedy", "out=second", folder))
    assert "dim_greedy" in out
    assert "1KiB" not in out
    assert "random" not in out


def test_sweep_without_costs_prints_a_table_of_results(here, capsys):
    done(capsys, *_search(here, "searcher=random", "out=found"))
    out = done(capsys, "report", "-m", "found", f"out={here}/a,{here}/b")
    assert re.search(r"The sweep\W+result\W+done\W+done", out)


@pytest.mark.parametrize("launcher", ["basic", pytest.param("joblib", marks=pytest.mark.slow)])
def test_commands_write_files_only_to_the_out_path(here, capsys, launcher):
    sweep = ("-m", "searcher=random,dim_greedy", f"hydra/launcher={launcher}", f"out='{here}/swept/${{method}}'")
    out = done(capsys, *_search(here, *sweep))
    assert re.search(r"searcher\W+solved.*random\W+1/1.*dim_greedy\W+1/1", out, re.DOTALL)
    plan = f"{here}/swept/random/plans/task-0000.json"
    for command in (
        ("export", plan, "to=json", f"out={here}/plain.json"),
        ("explain", plan, f"model={here}/models", f"out={here}/page.html"),
        ("report", f"{here}/swept", f"out={here}/report"),
    ):
        done(capsys, *command)
    assert list(Path().iterdir()) == []
    assert {path.name for path in (here / "swept").iterdir()} == {"random", "dim_greedy"}


def test_continuing_a_search_with_other_models_is_refused(here, capsys):
    done(capsys, *_search(here, "searcher=random", "out=x"))
    save_bundle(here / "models", random_models(seed=7), Card())
    _failed(capsys, "out-begun-otherwise", *_search(here, "searcher=random", "out=x"), names=["models"])


def test_search_refuses_an_out_path_under_a_file_before_searching(here, capsys, monkeypatch):
    monkeypatch.setattr("neuroshard.stages.search.runs.search.search_task", None)
    (here / "file").write_text("")
    for out in (f"out={here}/file", f"out={here}/file/inside"):
        _refused(capsys, "out-under-file", *_search(here, out), where=out, names=[here / "file"])


def test_out_paths_with_a_tilde_or_a_url_scheme_are_plain_paths(here, capsys):
    for out in ("'~/x'", "http:/x"):
        done(capsys, *_search(here, "searcher=random", f"out={out}"))
    assert Path("~/x/results.parquet").exists()
    assert Path("http:/x/results.parquet").exists()


def test_memory_size_on_the_command_line_may_have_a_unit(here, capsys):
    done(capsys, *_search(here, "topology.memory_bytes=1.5GiB", "searcher=random", "out=a"))
    assert Plan.load("a/plans/task-0000.json").task.topology.memory_bytes == 3 << 29


def test_collecting_on_a_missing_gpu_is_refused_and_writes_nothing(here, capsys, monkeypatch):
    none = Fingerprint("cuda", "none", 0, 1)
    monkeypatch.setattr("neuroshard.measure.hardware.fingerprint", lambda kind: none)
    _refused(capsys, "hardware-no-gpu", "collect", "hardware=cuda", "out=x", where="hardware=cuda")


def test_saving_weights_on_a_full_disk_is_refused_in_one_line(here, capsys, monkeypatch):
    write = Path.write_bytes

    def full(path, content):
        if "policy.safetensors" in path.name:
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    names = ["No space left on device", "policy.safetensors"]
    _failed(capsys, "system-refused", *_train(here, "learner.rounds=1", "out=trained"), names=names)


SETTINGS_OUT_OF_RANGE = [
    ("search", "topology.num_devices", 0, 4),
    ("search", "searcher.grid.max_factor", 0, 1.5),
    ("search", "searcher.beam_width", 0, 2),
    ("search", "batch_size", 0, 256),
    ("search", "tables.zipf_exponent", -1, 1),
]


@pytest.mark.parametrize(("command", "name", "wrong", "right"), SETTINGS_OUT_OF_RANGE)
def test_setting_that_an_error_names_can_be_set_under_this_name(here, capsys, command, name, wrong, right):
    arguments = _search(here, "out=found")[1:]
    message = refused_command(capsys, "value-outside-limits", command, *arguments, f"{name}={wrong}")
    assert message.what.startswith(f"{name} is {wrong}")
    assert message.remedy.startswith(f"Set {name} to ")
    done(capsys, command, *arguments, f"{name}={right}")
