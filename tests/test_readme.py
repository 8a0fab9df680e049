"""Every command and snippet of the README runs, in order, in one folder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETUP = "python3 -m pip install uv && python3 -m uv run "


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def commands() -> list[str]:
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.strip()]
    return [line.removeprefix(SETUP) for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


def test_setup_commands_are_shown_as_they_are_tested():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert SETUP + "rcp-bayes demo" in lines
    assert SETUP + "pytest" in lines


def test_commands_run_in_order(folder):
    for command in commands():
        words = shlex.split(command)
        if words == ["pytest"]:  # this is that command
            continue
        assert words[0] == "rcp-bayes", f"the README shows a command that no test runs: {command}"
        pool = str(ROOT / "rcp_bayes" / "data" / "pool")
        words = [pool if word == "POOL" else word for word in words]
        argv = [sys.executable, "-m", "rcp_bayes", *words[1:]]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip(), command


def test_python_snippet_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    snippets = blocks("python")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})


def test_pictures_exist():
    for path in re.findall(
        r"\]\(((?:figures|benchmarks|models)/[^)]+)\)", (ROOT / "README.md").read_text()
    ):
        assert (ROOT / path).is_file(), path
