"""The pages agree with the code: generated pages are current, commands compose, and links lead to files."""

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import neuroshard as ns
from neuroshard.app.arguments import for_hydra
from neuroshard.app.cli import main
from neuroshard.app.commands import COMMANDS
from neuroshard.plumbing.registry import composed

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT / "docs", ROOT / "benchmarks" / "archive"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(page for one in FOLDERS for page in sorted(one.rglob("*.md"))),
]
OWN = ("models", "COMMAND", "-sc")
OWN_PARTS = ("hydra.searchpath", "--config-dir")  # need the package of a page, whose test runs them


def _blocks(text):
    """Yield the code blocks without a language."""
    language, lines = None, []
    for line in text.splitlines():
        if line.startswith("```"):
            if language == "":
                yield "\n".join(lines)
            language, lines = (line.removeprefix("```") if language is None else None), []
        else:
            lines.append(line)


def _commands(page):
    """Yield the command lines of a page, in blocks and tables, as arguments after `neuroshard`."""
    text = "\n".join(_blocks(page.read_text())).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()] + re.findall(r"`(neuroshard [^`\n]+)`", page.read_text())
    for line in lines:
        command = re.sub(r"^(srun )?torchrun .*-m (?=neuroshard )", "", line)
        command = re.sub(r" > [\w.-]+$", "", command)  # of a shell
        is_title = re.match(r"neuroshard (shards|[\w-]+:)", command)  # of a page of --help
        if command.startswith("neuroshard ") and not is_title:
            yield shlex.split(command.removeprefix("neuroshard "), comments=True)


CASES = [(page.name, arguments) for page in PAGES for arguments in _commands(page)]


def test_pages_show_every_command():
    assert len(CASES) > 50
    assert {arguments[0] for _, arguments in CASES} >= set(COMMANDS)


@pytest.mark.parametrize(("page", "arguments"), CASES, ids=lambda value: value if isinstance(value, str) else value[0])
def test_commands_shown_in_pages_compose(page, arguments):
    command, *rest = arguments
    if command in OWN:
        return
    assert command in COMMANDS
    texts = for_hydra(command, [text for text in rest if text not in ("...", "[...]")])
    if any(text.startswith(OWN_PARTS) for text in texts):
        return
    composed(command, list(_first_job(texts)))


def _first_job(texts):
    """Return the settings of the first job of a sweep, or of a single command."""
    parser, flags = OverridesParser.create(), ("-", "job")
    for text in (text for text in texts if not text.startswith(flags)):
        (override,) = parser.parse_overrides([text])
        if "hydra/" not in text and not text.startswith("hydra."):
            yield (
                f"{override.input_line.partition('=')[0]}={next(override.sweep_string_iterator())}"
                if (override.is_sweep_override())
                else text
            )


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py, whose helpers are beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("generate")


def test_generated_pages_match_files_on_disk(generate):
    for path, text in generate.pages().items():
        assert path.read_text() == text, f"{path} is out of date: make docs"


def test_constants_are_printed_by_value_and_not_by_their_types_docstring(generate, monkeypatch):
    python_pages = importlib.import_module("python_pages")
    monkeypatch.setattr(ns, "TENTH", 0.1, raising=False)
    page = python_pages.Page("Numbers", "count", ("TENTH",))
    text = python_pages.page_of(page, ns)
    assert "ns.TENTH = 0.1\n" in text
    for kind in (bool, int, float, str, tuple, dict):
        assert kind.__doc__.splitlines()[0] not in text


def test_every_public_name_and_every_class_with_settings_has_a_page(generate, monkeypatch):
    python_pages, command_pages = (importlib.import_module(name) for name in ("python_pages", "command_pages"))
    monkeypatch.setattr(python_pages, "PAGES", {})
    with pytest.raises(ValueError, match="no page for: Constraints"):
        generate.python_pages(ROOT)
    monkeypatch.setattr(command_pages, "SETTINGS", {})
    with pytest.raises(ValueError, match="no page for the settings of: ActorCritic"):
        generate.command_pages(ROOT, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_pages_lead_to_existing_files(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.xdist_group("measures")
def test_every_command_of_the_first_plan_tutorial_runs(tmp_path, monkeypatch, capsys):
    """Every command of the first tutorial, one after the other, and its code."""
    text = (ROOT / "docs" / "tutorials" / "first_plan.md").read_text()
    monkeypatch.chdir(tmp_path)
    for line in "\n".join(_blocks(text)).splitlines():
        if line.startswith("neuroshard "):
            main(shlex.split(line)[1:])
        else:
            subprocess.run(["bash", "-c", line], check=True)
    assert "page: found/explained.html" in capsys.readouterr().out
    for file in ("found/explained.html", "found/measured/plan.png", "compared/page/report.html"):
        assert (tmp_path / file).stat().st_size > 1000
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert ns.Plan.load("plan.json").task.batch_size == 1024
