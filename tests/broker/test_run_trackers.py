"""Jobs with ``[report]`` at a real broker: reported from its machine, within what its operator allows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from farflung.broker.run_table import RunTable
from farflung.broker.run_trackers import RunTrackers
from farflung.errors import InputError
from farflung.integrations.trackers.csv_file import CsvTracker
from farflung.job import JobSpec
from farflung.job.spec import ReportSpec
from farflung.security import Caller
from farflung.tracking import RunFollower
from tests.support.runs.loopback import Loopback, text_folder, text_job

CLIENT = Caller(name="client", role="client", key="k")
OWNER = Caller(name="me", role="owner", key="k")


def job(*names: str) -> JobSpec:
    return JobSpec(report=ReportSpec(to=names))


def trackers(*allowed: str) -> RunTrackers:
    return RunTrackers(RunTable(), lambda run, text: None, allowed)


def test_a_submitter_may_write_files_but_use_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.tracking.registry.find_spec", lambda name: object())
    trackers().check(job("csv", "tensorboard"), CLIENT)
    with pytest.raises(InputError, match="'wandb' uses the accounts of the broker's operator, who allows it to submitters"):
        trackers().check(job("csv", "wandb"), CLIENT)
    trackers("wandb").check(job("wandb"), CLIENT)
    trackers().check(job("wandb", "mlflow"), OWNER)


def test_a_tracker_must_be_known_and_installed_at_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"report\.to: unknown tracker 'neptun'"):
        trackers().check(job("neptun"), OWNER)
    monkeypatch.setattr("farflung.tracking.registry.find_spec", lambda name: None)
    with pytest.raises(InputError, match="'trackio' needs the package trackio, missing on the broker's machine"):
        trackers().check(job("trackio"), OWNER)


def rows(root: Path) -> list[tuple[int, float]]:
    with (root / "trackers/csv/metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row["train/loss"])) for row in csv.DictReader(file) if row["train/loss"]]


def test_a_run_is_reported_though_nobody_watches(tmp_path: Path) -> None:
    text_folder(tmp_path)
    with Loopback(tmp_path, 2) as cluster:
        found = cluster.run(text_job(steps=6, report={"to": ["csv"]}))
    RunFollower(found.folder, "csv", CsvTracker).follow(lambda seconds: True)  # what the broker's end cut short
    assert rows(found.folder) == list(enumerate(found.losses, start=1))
    with (found.folder / "trackers/csv/texts.csv").open(newline="") as file:
        texts = [(int(step), name, text) for step, name, text in csv.reader(file)]
    assert (6, "events/checkpoint", "checkpoint after step 6") in texts
    ((step, _, text),) = [one for one in texts if one[1] == "events/plan"]
    assert (step, text.startswith("plan 1: ")) == (0, True)


def test_a_refused_job_leaves_no_run(tmp_path: Path) -> None:
    text_folder(tmp_path)
    with Loopback(tmp_path, 1) as cluster:
        with pytest.raises(InputError, match=r"report\.to: 'wandb' uses the accounts"):
            cluster.run(text_job(steps=2, report={"to": ["wandb"]}))
        assert cluster.client.status()["runs"] == []
