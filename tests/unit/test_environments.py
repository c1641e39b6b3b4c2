"""The course on other machines: the container for VS Code, and the notebook."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import run_day
from common.base.machine_faults import OLDEST_GCC
from common.base.paths import ROOT
from common.run.doctor import requirements
from common.run.editor import EXTENSIONS

CONTAINER = ROOT / ".devcontainer/devcontainer.json"
NOTEBOOK = ROOT / ".github/colab.ipynb"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def commands(text: str) -> list[list[str]]:
    """Return the arguments of every run of run_day.py in a text."""
    found = re.findall(r"python run_day\.py([^\n`&|]*)", text)
    return [shlex.split(words) for words in found]


def code(notebook: dict[str, Any]) -> list[str]:
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def test_the_container_is_set_up() -> None:
    container = read(CONTAINER)
    assert container["image"].startswith("mcr.microsoft.com/devcontainers/python:3.11")
    created = container["postCreateCommand"]
    assert "python -m pip install -r requirements.txt" in created
    assert commands(created) == [["--editor"], ["--doctor"]]
    torch = re.search(r"torch==([\d.]+) ", container["updateContentCommand"])
    assert torch and torch.group(1) == requirements()["torch"].newest
    assert tuple(container["customizations"]["vscode"]["extensions"]) == EXTENSIONS


def test_the_notebook_is_one() -> None:
    notebook = read(NOTEBOOK)
    assert notebook["nbformat"] == 4 and notebook["nbformat_minor"] >= 5
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"])
        assert cell["cell_type"] in ("markdown", "code") and cell["metadata"] == {}
        assert all(isinstance(line, str) for line in cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_the_notebook_clones_installs_runs_and_practises() -> None:
    clone, install, *others = code(read(NOTEBOOK))
    assert clone.startswith('REPOSITORY = "') and "git clone" in clone
    assert install.startswith("%%bash\nset -e\n") and "--doctor" in install
    lines = [words for text in others for words in commands(text)]
    assert lines == [["1"], ["1", "--practice"], ["1", "--practice"], ["1", "--practice", "--hint"]]


def texts() -> dict[str, str]:
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = ["".join(cell["source"]) for cell in read(NOTEBOOK)["cells"]]
    return {
        "the front page": re.sub(r" #.*", "", front),
        "the notebook": "\n".join(cells),
        "the container": read(CONTAINER)["postCreateCommand"],
    }


@pytest.mark.parametrize("where", texts())
def test_every_command_is_understood(where: str) -> None:
    lines = commands(texts()[where])
    assert len(lines) >= 2
    for arguments in lines:
        parser = run_day.parser()
        if arguments != ["--help"]:
            run_day.check(parser, parser.parse_intermixed_args(arguments))


def test_the_front_page_names_the_compiler_that_is_needed() -> None:
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"(`g++` {OLDEST_GCC} or later)" in front
    assert f"version {requirements()['torch'].newest}:" in " ".join(front.split())
