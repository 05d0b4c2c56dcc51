"""``farflung plan RUN`` explains the plan of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from farflung import train
from tests.support.commands.planned_jobs import JOB, run


class Model(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).pow(2).mean()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    folder = tmp_path / "broker" / "runs" / "run-a"
    model = Model(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    train(model, lambda step, micro_batch: torch.ones(2, 8), steps=1, workers=2, folder=folder)
    return folder


def test_a_run_is_named_by_its_folder_or_its_name(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, by_folder, _ = run(["plan", trained], capsys)
    assert code == 0
    assert by_folder.startswith("predicted step: ")
    assert "(planner equal_compute, schedule 1f1b, 1 micro-batch per step)" in by_folder
    code, by_name, _ = run(["plan", "run-a", "--home", trained.parent.parent], capsys)
    assert code == 0
    assert by_name == by_folder


def test_the_plan_is_the_one_of_the_run(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["plan", trained, "--json", "--what-if", "add 1 like device-0"], capsys)
    assert code == 0
    body = json.loads(out)
    assert body["plan"] == json.loads((trained / "plan.json").read_text())
    assert list(body["what_if"]) == ["add 1 like device-0"]
    code, out, _ = run(["plan", trained, "--explain"], capsys)
    assert code == 0


def test_options_that_make_another_plan_are_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--topology", "homogeneous-2"], ["--planner", "auto"], ["--stages", "1"]):
        code, _, err = run(["plan", trained, *words], capsys)
        assert code == 2
        assert f"{words[0]} makes another plan, but '{trained}' is a run, whose plan is explained: remove {words[0]}" in err


def test_what_is_neither_a_job_nor_a_run_is_an_error(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = trained.parent
    code, _, err = run(["plan", "run-b", "--home", runs.parent], capsys)
    assert code == 2
    assert f"'run-b' is neither a job file nor a run in {runs}: name a job file (TOML), a run, or the folder of a run" in err
    assert "runs there: run-a (" in err
    (trained / "plan.json").unlink()
    code, _, err = run(["plan", trained], capsys)
    assert code == 2
    assert f"the run in {trained} has no plan yet (plan.json is missing): wait until the run starts (farflung status)" in err
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    wants = "farflung: a job file needs a topology to plan for: add --topology FILE or --topology PRESET; for the workers of "
    remote = "your broker, farflung profile --ticket TICKET --save links.toml writes FILE\n"
    assert run(["plan", job, "--home", tmp_path], capsys)[::2] == (2, wants + remote)
    (tmp_path / "submit-ticket").write_text("x")
    here = f"the broker on this machine, farflung profile --home {tmp_path} --save links.toml writes FILE\n"
    assert run(["plan", job, "--home", tmp_path], capsys)[::2] == (2, wants + here)
