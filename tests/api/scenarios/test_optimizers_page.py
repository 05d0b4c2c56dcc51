"""The blocks of docs/optimizers.md, run as a user would."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from farflung import TrainResult
from farflung.job import make_job
from tests.support.engines.optimizers import Net, batch

PAGE = (Path(__file__).resolve().parents[3] / "docs/optimizers.md").read_text(encoding="utf-8")


def test_the_python_blocks_run() -> None:
    names: dict[str, Any] = {"__name__": "page", "model": Net(), "batch": batch}
    results: list[TrainResult] = []
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)):
        exec(compile(block, f"docs/optimizers.md block {number}", "exec"), names)
        results.append(names["result"])
    assert [result.steps for result in results] == [20, 20, 20]
    assert results[0].losses[0] == results[1].losses[0]
    assert results[0].losses[-1] != results[1].losses[-1]


def test_the_parts_of_job_files_are_read() -> None:
    first, second, third = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL))
    job = make_job({"steps": 200, **first, **second})
    assert job.optimizer.groups[0].settings == {"ns_steps": 5}
    assert make_job(third).optimizer.update == "master"
    assert job.schedule.weight_decay is not None
