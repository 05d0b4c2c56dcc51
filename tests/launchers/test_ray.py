"""Provider ray, with a real Ray cluster on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.harness.machines.ray_cluster import ray_cluster, ray_python
from farflung.errors import InputError
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.ray import RayProvider
from tests.support.commands.launched_clusters import JOB, Person, secrets_in, shown_tickets

FILE = """
provider = "ray"
[broker]
listen = "127.0.0.1:0"
no_web = true
[workers]
count = 2
listen = "127.0.0.1:0"
device = "cpu"
[workers.environment]
OMP_NUM_THREADS = "1"
[ray]
address = "{address}"
"""


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_machine_without_ray(tmp_path: Path) -> None:
    cluster = make_cluster({"name": "lab", "provider": "ray", "workers": {"count": 1}})
    with pytest.raises(InputError, match=r"the provider 'ray' needs the package ray, .*: pip install 'farflung\[ray\]'"):
        RayProvider(cluster, tmp_path).check(None)


@pytest.mark.launchers
@pytest.mark.timeout(900)
@pytest.mark.skipif(not ray_python(), reason="needs Ray (pip install farflung[ray], or FARFLUNG_RAY_PYTHON)")
def test_from_up_to_a_finished_job_and_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    person = Person(tmp_path, ray_python())
    file, ticket = tmp_path / "lab.toml", tmp_path / "home/clusters/lab/owner-ticket"
    (tmp_path / "job.toml").write_text(JOB)
    with ray_cluster(tmp_path, ray_python(), cpus=2) as (address, logs):
        file.write_text(FILE.format(address=address) + "gpus = 1.0\n")
        refused = person.start("up", "lab.toml").ends_cleanly(2)
        assert "a worker needs 1 GPU, and the Ray cluster has 0: change the table [ray], or add nodes" in refused
        file.write_text(FILE.format(address=address))
        assert "lab: 2 of 2 workers joined" in person.call("up", "lab.toml", "--wait", "4 min")
        assert shown_tickets([ticket]) == []
        assert secrets_in(logs) == []
        assert "finished after 2 steps" in person.call("submit", "job.toml", "--ticket", f"@{ticket}")
        assert "lab: 2 of 3 workers joined; 1 waits for a machine" in person.call("scale", "lab", "3")
        assert "joined the broker" in person.call("logs", "lab.toml")
        assert "lab: 1 of 1 worker joined" in person.call("scale", "lab", "1")
        assert "lab: stopped" in person.call("down", "lab")
        assert secrets_in(tmp_path) == []
    file.write_text(FILE.format(address="127.0.0.1:1"))
    assert "no Ray cluster answers at '127.0.0.1:1'" in person.start("up", "lab.toml").ends_cleanly(10)
