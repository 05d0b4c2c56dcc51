"""``farflung graph``: forms, levels and stages of a plan."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from farflung.cli.main import main
from farflung.graph import Graph

JOB = """
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 8, layers = 2, width = 8, heads = 2 }
[data]
kind = "text"
path = "x"
sequence = 8
[evaluate]
batches = 1
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def run(arguments: list[str | Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as over:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(over.value.code or 0), out, err


def test_text_dot_svg_and_the_document(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["graph", job, "--level", "block"], capsys)
    assert code == 0
    assert "blocks.1" in out
    assert "capturing the model gpt" in err
    code, out, _ = run(["graph", job, "--format", "json"], capsys)
    graph = Graph.from_json(out)
    assert graph.name == "gpt"
    assert run(["graph", job, "--format", "dot"], capsys)[1].startswith("digraph")
    code, out, _ = run(["graph", job, "--format", "svg", "--out", tmp_path / "g.svg"], capsys)
    assert out.strip() == str(tmp_path / "g.svg")
    assert ET.parse(tmp_path / "g.svg").getroot().tag.endswith("svg")


def test_stages_of_a_plan(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["plan", job, "--topology", "homogeneous-2", "--planner", "equal_compute", "--json"], capsys)
    assert code == 0
    plan = json.loads(out)["plan"]
    (tmp_path / "whole.json").write_text(out)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    code, marked, _ = run(["graph", job, "--plan", tmp_path / "plan.json"], capsys)
    assert code == 0
    plain = run(["graph", job], capsys)[1]
    assert marked != plain
    assert run(["graph", job, "--plan", tmp_path / "whole.json"], capsys)[:2] == (0, marked)
    job.write_text(JOB.replace("layers = 2", "layers = 1"))
    code, _, err = run(["graph", job, "--plan", tmp_path / "plan.json"], capsys)
    assert code == 2
    assert "is for another graph" in err


def test_what_is_refused(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("tree", "²", "0", "9" * 5000):
        code, _, err = run(["graph", job, "--level", level], capsys)
        assert code == 2
        assert f"--level '{level}': known are leaf, block, or a depth from 1 on" in err
    code, _, err = run(["graph", job, "--plan", tmp_path / "no.json"], capsys)
    assert code == 2
    assert "no.json can't be read" in err
    code, _, err = run(["graph", job, "--out", tmp_path / "no" / "g.txt"], capsys)
    assert code == 2
    assert "can't be written" in err
