"""``farflung ledger``: a table, JSON and CSV of runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from farflung.cluster import Topology
from tests.support.commands.planned_jobs import run
from tests.support.records.written_runs import WrittenAttempt, write_run
from tests.support.steps.small_runs import small_job, small_plan

BASE = Topology.preset("local4-two-regions")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    plan = small_plan(("east-0", "west-0"))
    for number in (1, 2):
        attempt = WrittenAttempt(plan=plan, topology=BASE, first=0, steps=10 * number)
        write_run(tmp_path / "home" / "runs" / f"run-{number}", small_job(), [attempt])
    return tmp_path / "home"


def test_table_json_and_csv(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["ledger", "--home", home], capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "run-1 (small): 10 steps, 80 samples, 2 kB on links, 10.00 s"
    assert lines[3].split()[:3] == ["machine", "region", "samples"]
    assert lines[5].split()[:3] == ["east-0", "east", "240"]
    assert lines[7].split()[:4] == ["all", "machines", "240", "0"]
    assert "energy (estimated): busy and idle watts of the price file, or typical watts" in out
    assert "FLOPs (estimated): from the cost model" in out
    code, out, _ = run(["ledger", "run-2", "--home", home, "--json"], capsys)
    body = json.loads(out)
    assert body["total"]["samples"] == body["runs"][0]["samples"] == 160
    assert [entry["machine"] for entry in body["machines"]] == ["east-0", "west-0"]
    target = tmp_path / "ledger.csv"
    assert run(["ledger", "--home", home, "--csv", target], capsys)[0] == 0
    with target.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["machine"], row["samples"]) for row in rows] == [
        ("run-1", "east-0", "80"),
        ("run-1", "west-0", "80"),
        ("run-2", "east-0", "160"),
        ("run-2", "west-0", "160"),
    ]


def test_prices_come_from_a_file_or_from_the_broker(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    (home / "prices.toml").write_text('currency = "EUR"\n[default]\nhour = 36.0\n')
    own.write_text('currency = "CHF"\n[default]\nhour = 72.0\n')
    assert "0.30 EUR" in run(["ledger", "--home", home], capsys)[1]
    assert "0.60 CHF" in run(["ledger", "--home", home, "--prices", own], capsys)[1]


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["ledger", "--home", tmp_path], capsys)
    assert code == 2
    assert f"there are no runs in {tmp_path / 'runs'}: name run folders, or the broker's --home; runs there: none" in err
    code, _, err = run(["ledger", "gone", "--home", tmp_path], capsys)
    assert code == 2
    assert "there is no run 'gone'" in err
