"""The code of docs/trackers.md runs, and its job files are jobs."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from farflung import train
from farflung.job import make_job
from tests.support.runs.small_training import batch, net

PAGE = (Path(__file__).resolve().parents[3] / "docs/trackers.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_job_files_are_jobs() -> None:
    first, wandb, package = (tomllib.loads(block) for block in blocks("toml"))
    assert make_job(first).report.to == ("tensorboard", "csv")
    assert make_job(wandb).report.project == "gpt-at-home"
    assert EntryPoint(name="printed", value=package["project"]["entry-points"]["farflung.trackers"]["printed"], group="").attr


def test_the_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    first, table, own, settings = blocks("python")
    names: dict[str, Any] = {"train": train, "module": net(), "batch_fn": batch}
    exec(compile(own, "trackers.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"train-{names['result'].run.removeprefix('run-')} 100"
    assert printed[1] == f"1 {names['result'].losses[0]}"
    assert printed[-1] == "finished"
    exec(compile(settings, "trackers.md", "exec"), names)
    run = names["result"].run
    exec(compile(table.replace("RUN", run), "trackers.md", "exec"), names)
    assert list(names["table"]["train/loss"]) == list(names["result"].losses)
    exec(compile(first, "trackers.md", "exec"), names)
    assert list((tmp_path / "runs" / names["result"].run / "trackers/tensorboard").glob("events.out.tfevents.*"))
