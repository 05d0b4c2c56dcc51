"""Broker, planners, simulator and clients work without PyTorch; what needs it says so in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farflung.api.capturing import capture
from farflung.cli.main import main
from farflung.frontends.recipes.registry import load_recipe

ROOT = Path(__file__).resolve().parents[2]
#: A Python in which ``import torch`` and ``import jax`` fail as where they are not installed.
BARE = "import sys; sys.modules['torch'] = sys.modules['jax'] = None; "
COMMAND = BARE + "from farflung.cli.main import main; main(sys.argv[1:])"
JOB = """
micro_batch_sizes = [2, 2]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 8, layers = 2, width = 8, heads = 2 }
[data]
kind = "text"
path = "x"
sequence = 8
"""
NEEDED_BY_WORKERS = (
    "needs PyTorch or JAX, which is not installed here: pip install 'farflung[torch]' or pip install 'farflung[jax]'"
)
NEEDED = "needs PyTorch, which is not installed here: pip install 'farflung[torch]'"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def farflung(tmp_path: Path) -> Command:
    """Run a command without PyTorch."""
    environment = {**os.environ, "FARFLUNG_HOME": str(tmp_path / "home")}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )

    return run


@pytest.fixture
def ticket(tmp_path: Path) -> Iterator[str]:
    """The join ticket of a broker without PyTorch."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", COMMAND, "broker", "--no-web", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FARFLUNG_HOME": str(tmp_path / "home")},
    )
    assert process.stdout is not None
    found = ""
    for line in process.stdout:
        found = match[1] if (match := re.search(r"farflung join (\S+)", line)) else found
        if "Press Ctrl-C" in line:
            break
    yield found
    process.terminate()
    process.communicate()


def test_a_broker_serves_clients(farflung: Command, ticket: str) -> None:
    assert farflung("status").stdout == "0 workers\n0 runs\n"
    done = farflung("join", ticket, "--name", "bare")
    assert (done.returncode, done.stderr) == (2, f"farflung: a worker {NEEDED_BY_WORKERS}\n")
    done = farflung("join", ticket, "--name", "bare", "--engine", "torch")
    assert (done.returncode, done.stderr) == (2, f"farflung: --engine torch {NEEDED}, or use another engine\n")
    assert farflung("status").stdout == "0 workers\n0 runs\n"


@pytest.mark.timeout(300)
def test_a_worker_without_it_trains(tmp_path: Path, ticket: str) -> None:
    environment = {**os.environ, "FARFLUNG_HOME": str(tmp_path / "home")}
    words = ["join", ticket, "--name", "bare", "--engine", "reference", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    worker = subprocess.Popen([sys.executable, "-u", "-c", COMMAND, *words], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert worker.stdout is not None
        lines = iter(worker.stdout.readline, "")
        assert any("bare: joined the broker at" in line for line in lines)
        (tmp_path / "x").write_text("a worker without PyTorch trains on these words. " * 20)
        job = tmp_path / "job.toml"
        job.write_text("steps = 2\n" + JOB.replace('"x"', f'"{tmp_path / "x"}"'))
        submit = [sys.executable, "-m", "farflung", "submit", job]
        done = subprocess.run(submit, capture_output=True, text=True, timeout=100, check=False, env=environment)
        assert "on bare" in done.stdout
        assert "finished after 2 steps" in done.stdout
    finally:
        worker.terminate()
        worker.communicate()


def test_a_graph_is_planned(tmp_path: Path) -> None:
    recipe = load_recipe("gpt", {"vocab": 256, "sequence": 8, "layers": 2, "width": 8, "heads": 2})
    (tmp_path / "graph.json").write_text(capture(recipe.train.factory, recipe.train.example_inputs(2)).to_json())
    program = """
from pathlib import Path
from farflung.cluster import Topology
from farflung.graph import Graph
from farflung.planners import get_planner
graph = Graph.from_json(Path(sys.argv[1]).read_text())
plan = get_planner("op_fence").plan(graph, Topology.preset("two-laptops"))
print(len(plan.stages))
"""
    done = subprocess.run(
        [sys.executable, "-c", BARE + program, tmp_path / "graph.json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert int(done.stdout) >= 1


def test_a_plan_is_simulated(farflung: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(JOB)
    for arguments in (["plan", job, "--topology", "two-laptops", "--json"], ["graph", job, "--format", "json"]):
        with pytest.raises(SystemExit):
            main([str(argument) for argument in arguments])
        (plan if arguments[0] == "plan" else tmp_path / "graph.json").write_text(capsys.readouterr().out)
    done = farflung("simulate", plan, "--topology", "two-laptops", "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout)


def test_the_capture_of_a_model_needs_it(farflung: Command, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    for command in (["plan", job, "--topology", "two-laptops"], ["graph", job]):
        done = farflung(*command)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == f"farflung: {job}: the capture of a model {NEEDED}"


def test_the_diagnosis_says_what_a_worker_lacks(farflung: Command) -> None:
    done = farflung("doctor")
    assert "a worker needs PyTorch or JAX, which is not installed here: pip install 'farflung[torch]' or" in done.stdout
    assert "torch 2" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_package_installs_without_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT]
    subprocess.run(install, check=True, timeout=500, env=environment)
    found = [python, "-c", "import importlib.util; print(importlib.util.find_spec('torch'))"]
    assert subprocess.run(found, capture_output=True, text=True, check=True, env=environment).stdout == "None\n"
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    planned = [tmp_path / "venv/bin/farflung", "plan", job, "--topology", "two-laptops"]
    done = subprocess.run(planned, capture_output=True, text=True, check=False, env=environment)
    assert done.stderr.splitlines()[-1] == f"farflung: {job}: the capture of a model {NEEDED}"
