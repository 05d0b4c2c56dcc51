"""Ledgers of runs for pages: computed again when a file has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.cluster import Topology
from farflung.telemetry import RunFolder, StepRecord
from farflung.web.sources import ledgers as module
from farflung.web.sources.ledgers import Ledgers
from tests.support.records.written_runs import WrittenAttempt, write_run
from tests.support.steps.small_runs import small_job, small_plan

TWO = Topology.preset("local4-two-regions")


def test_only_changes_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = WrittenAttempt(plan=small_plan(("east-0", "west-0")), topology=TWO, first=0, steps=3)
    folders = [write_run(tmp_path / name, small_job(), [attempt]) for name in ("run-1", "run-2")]
    computed: list[str] = []
    inner = module.ledger_of

    def counted(folder: RunFolder, prices: object) -> object:
        computed.append(folder.root.name)
        return inner(folder, prices)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "ledger_of", counted)
    ledgers, prices = Ledgers(), tmp_path / "prices.toml"
    found, problems = ledgers.of(folders, prices)
    assert ([one.samples for one in found], problems) == ([24, 24], [])
    assert ledgers.of(folders, prices)[0] == found
    assert computed == ["run-1", "run-2"]
    folders[1].append(StepRecord(step=3, loss=1.0, seconds=1.0, elapsed=4.0, samples=8))
    assert [one.samples for one in ledgers.of(folders, prices)[0]] == [24, 32]
    assert computed[2:] == ["run-2"]
    prices.write_text("[default]\nhour = 3600\n")
    assert ledgers.of(folders, prices)[0][0].entries[0].cost == pytest.approx(3.0)
    assert computed[3:] == ["run-1", "run-2"]


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    attempt = WrittenAttempt(plan=small_plan(("east-0", "west-0")), topology=TWO, first=0, steps=3)
    good = write_run(tmp_path / "run-1", small_job(), [attempt])
    bad = write_run(tmp_path / "run-2", small_job(), [attempt])
    bad.metrics.write_text("{\n")
    prices = tmp_path / "prices.toml"
    prices.write_text("x = ")
    found, problems = Ledgers().of([good, bad], prices)
    assert [one.run for one in found] == ["run-1"]
    assert "cannot read the price file" in problems[0]
    assert problems[1].startswith("run-2: ")
