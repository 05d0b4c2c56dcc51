"""What a machine stores about clusters that are up."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.errors import InputError, SecurityError
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.state import ClusterFolder, ClusterState, known_clusters

CLUSTER = make_cluster({"name": "lab", "workers": {"device": "cpu"}, "ssh": {"hosts": [{"address": "a", "workers": 2}]}})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    return ClusterFolder("lab")


def test_the_state_survives(folder: ClusterFolder) -> None:
    assert folder.read() is None
    with folder.locked():
        folder.write(ClusterState(cluster=CLUSTER, count=2))
        folder.keep_ticket("farflung1-secret")
    found = folder.state()
    assert (found.cluster.model_dump(), found.count) == (CLUSTER.model_dump(), 2)
    assert known_clusters() == ["lab"]
    assert [path.stat().st_mode & 0o077 for path in (folder.ticket, folder.place, folder.place / "cluster.json")] == [0, 0, 0]
    folder.forget()
    assert folder.read() is None
    assert not folder.ticket.exists()


def test_a_cluster_that_is_not_up_is_named(folder: ClusterFolder) -> None:
    with pytest.raises(InputError, match=r"the cluster 'lab' is not up: farflung up starts it \(up on this machine: none\)"):
        folder.state()


def test_a_damaged_or_open_file_is_refused(folder: ClusterFolder) -> None:
    with folder.locked():
        folder.write(ClusterState(cluster=CLUSTER, count=2))
    path = folder.place / "cluster.json"
    path.write_text('{"cluster": 3')
    with pytest.raises(InputError, match=r"cluster\.json is damaged .*: stop the processes by hand, and remove the file"):
        folder.read()
    path.chmod(0o644)
    with pytest.raises(SecurityError, match="lets others read it; run: chmod 600"):
        folder.read()


def test_two_commands_do_not_change_a_cluster_at_once(folder: ClusterFolder) -> None:
    with folder.locked(), pytest.raises(InputError, match="another command starts or stops the cluster 'lab' now: wait"):  # noqa: SIM117
        with ClusterFolder("lab").locked():
            pass
    with folder.locked():
        pass
