"""Conventions of GitHub and of releases: the workflow, the issue templates and the changelog."""

import re
from pathlib import Path

import pytest
import yaml

import neuroshard

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_workflow_runs_targets_of_the_makefile():
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {command[1] for command in commands} >= {"lint", "types", "quick", "site"}
    assert all(program == "make" and target in TARGETS for program, target in commands)


@pytest.mark.parametrize("name", ["plan", "defect"])
def test_issue_forms_ask_for_command_versions_and_plan(name):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert form["name"]
    assert form["description"]
    asked = {part["id"]: part for part in form["body"] if part["type"] != "markdown"}
    assert {"what", "command", "versions"} <= set(asked)
    text = " ".join(part["attributes"]["description"] + part["attributes"]["label"] for part in asked.values())
    assert "plan.json" in text
    assert "neuroshard models NAME" in text


def test_the_newest_version_of_the_changelog_is_the_package():
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == neuroshard.__version__
