"""``farflung plan --explain`` says which codecs ``auto`` chose, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.planned_jobs import JOB, run

CODEC = '[codec]\nname = "auto"\n'
SYNC = '[plan]\nreplicas = 2\n[sync]\nstrategy = "ssgd"\nsettings = { codec = "auto" }\n'
TOPOLOGY = "local4-two-regions"


def planned(folder: Path, more: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    job = folder / "job.toml"
    job.write_text(JOB.replace("[2, 2, 2]", "[2, 2]").replace("layers = 2, width = 8", "layers = 4, width = 64") + more)
    code, out, _ = run(["plan", job, "--topology", TOPOLOGY, "--planner", "equal_number", flag], capsys)
    assert code == 0
    return out


def test_codecs_of_links_have_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(tmp_path, CODEC, "--explain", capsys)
    assert "codecs for training from scratch, error 0.2:" in out
    assert "1 -> 2, values: quantized(bits=4, block=256, rotate=1, scale=normal) in" in out
    assert "2 -> 1, gradients: quantized(bits=3, block=256, rotate=1, scale=normal) in" in out
    assert "at most 0.24 allowed" in out
    assert "codecs for" not in planned(tmp_path, '[codec]\nname = "int8"\n', "--explain", capsys)


def test_what_replicas_exchange_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "replicas exchange" in planned(tmp_path, SYNC, "--explain", capsys)
    document = json.loads(planned(tmp_path, SYNC, "--json", capsys))
    assert document["plan"]["sync"]["settings"]["codec"] != "auto"
