"""The blocks of docs/python.md, run from top to bottom as a user would, and its tables."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from farflung import EarlyStop, Evaluation, TrainResult, train

PAGE = (Path(__file__).resolve().parents[3] / "docs/python.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_blocks_run(ticket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page", "ticket": ticket}
    results: list[TrainResult] = []
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)):
        exec(compile(block, f"docs/python.md block {number}", "exec"), names)
        results.append(names["result"])
    same = [value.tobytes() for value in results[1].state_dict().values()]
    assert [value.tobytes() for value in results[5].state_dict().values()] == same, "with the ticket as without it"
    assert set(torch.load("weights.pt", weights_only=True)) == set(results[1].state_dict())
    assert all((tmp_path / name / "config.json").exists() for name in ("trained", "trained-again"))
    assert (names["run"].status.state, (tmp_path / "gpt.safetensors").exists()) == ("finished", True)
    assert len(results[8].evaluations) == len(results[9].evaluations) == 2
    assert results[10].stopped == (results[10].steps < 200)
    assert names["second"].steps == 20
    assert len(names["second"].losses) == 10


def rows(title: str) -> list[list[str]]:
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    assert found
    return found


def test_the_table_has_every_argument_and_its_default() -> None:
    known = dict(inspect.signature(train).parameters)
    table = {name: row[1].strip("`") for row in rows("Arguments") for name in re.findall(r"`(\w+)`", row[0])}
    assert table.keys() == known.keys()
    for name, said in table.items():
        default = known[name].default
        if isinstance(default, str | int) and default is not inspect.Parameter.empty:
            assert said.strip('"') == str(default), name


def test_the_tables_of_fields_are_complete() -> None:
    shown = {name for row in rows("The result") for name in re.findall(r"`(\w+)`", row[0])}
    inner = {"states", "aliases", "planned", "captured", "source", "seed"}
    assert shown == {field.name for field in fields(TrainResult)} - inner | {"status", "plan", "graph"}
    for kind in (Evaluation, EarlyStop):
        (line,) = re.findall(rf"The fields of `{kind.__name__}` are (.*)", PAGE)
        assert [field.name for field in fields(kind)] == re.findall(r"`(\w+)`", line)
