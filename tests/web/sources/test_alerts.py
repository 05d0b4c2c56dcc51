"""What deserves attention, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.web.sources.alerts import Alert, cluster_alerts, disk_alert, run_alerts
from farflung.web.sources.broker_poll import ClusterState, LinkRow
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_analysis import Analysis

MEMBERS = ({"name": "a"}, {"name": "b"}, {"name": "c"})


@pytest.mark.parametrize(
    ("state", "alert"),
    [
        (ClusterState(problem="the broker does not answer"), Alert("the broker does not answer", severe=True)),
        (ClusterState(members=({"name": "a", "silence": 7.0},)), Alert("a has been silent for 7.00 s.", severe=True)),
        (
            ClusterState(members=({"name": "a", "disk": 9e8}, {"name": "b", "disk": 1e9}, {"name": "c", "disk": None})),
            Alert("The disk of a has 900 MB left: free some space there.", severe=True),
        ),
        (ClusterState(members=({"name": "a", "warnings": ["other torch"]},)), Alert("a: other torch")),
        (ClusterState(runs=({"run": "r", "slow": ["a"]},)), Alert("a computes slower than usual (run r).")),
        (ClusterState(runs=({"run": "r", "slow": ["a -> b"]},)), Alert("The link from a to b is slow (run r).")),
        (ClusterState(runs=({"run": "r", "absent": ["a", "b"]},)), Alert("Run r waits for a, b to come back.", severe=True)),
        (
            ClusterState(
                members=MEMBERS,
                links=tuple(LinkRow(source=s, target=t, alpha=0.1, beta=1.0, relay="c") for s, t in (("a", "b"), ("b", "a"))),
            ),
            Alert("a and b cannot reach each other: c relays their traffic."),
        ),
    ],
)
def test_alerts_of_a_cluster(state: ClusterState, alert: Alert) -> None:
    assert cluster_alerts(state) == [alert]


def test_relays_between_machines_that_left_are_no_alert() -> None:
    links = (LinkRow(source="a", target="x", alpha=0.1, beta=1.0, relay="c"),)
    assert cluster_alerts(ClusterState(members=MEMBERS, links=links)) == []


def test_a_stage_without_a_copy_is_an_alert_until_the_run_is_over(tmp_path: Path) -> None:
    run = LiveRun(tmp_path, "run-a")
    one = Analysis(unprotected=(1,), why_not="the job wants none")
    assert run_alerts(run, one) == [
        Alert("Run run-a: stage 1 has no copy on another machine (the job wants none); a loss resumes from the checkpoint.")
    ]
    assert "stages 0, 1 have" in run_alerts(run, Analysis(unprotected=(0, 1), why_not="x"))[0].text
    assert run_alerts(run, None) == run_alerts(run, Analysis()) == []


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = LiveRun(tmp_path)
    run.folder.job.write_text("{")
    run.refresh()
    (alert,) = run_alerts(run, None)
    assert alert.text.startswith("job.json: ")


def test_a_full_disk(tmp_path: Path) -> None:
    (alert,) = disk_alert(tmp_path, low=float("inf"))
    assert alert.severe
    assert alert.text.endswith(" left: remove old runs, or checkpoints will fail.")
    assert list(disk_alert(tmp_path, low=0.0)) == list(disk_alert(None)) == list(disk_alert(tmp_path / "missing")) == []
