"""Provider slurm, with a real Slurm on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.machines.slurm_nodes import has_slurm, slurm_nodes
from farflung.errors import FarflungError, InputError
from farflung.launchers.base import ProcessState
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.programs import run_one
from farflung.launchers.slurm import SlurmProvider
from tests.support.commands.launched_clusters import JOB, Person, secrets_in
from tests.support.network.quiet import until

needs_slurm = pytest.mark.skipif(
    not has_slurm(), reason="needs root and Slurm (apt-get install slurmctld slurmd slurm-client munge)"
)
FILE = """
provider = "slurm"
[broker]
listen = "127.0.0.1:0"
no_web = true
[workers]
count = 3
listen = "127.0.0.1:0"
device = "cpu"
[workers.environment]
OMP_NUM_THREADS = "1"
"""

#: Answers like the commands of Slurm: job 7 has a task that runs and one that waits, and one is over.
COMMAND = """#!{python}
import json, os, sys
name = os.path.basename(sys.argv[0])
with open("{log}", "a") as log:
    log.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "sbatch":
    open("{log}.script", "w").write(sys.stdin.read())
    print("8;cluster")
if name == "squeue":
    print("7_0|R|n1\\n7_1|PD|\\n7_2|F|n2")
"""


def cluster(**document: object) -> ClusterSpec:
    return make_cluster({"name": "lab", "provider": "slurm", "workers": {"count": 2, "memory": "1 GB"}, **document})


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which stand-ins for the commands of Slurm write how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sinfo"):
        (folder / name).write_text(COMMAND.format(python=sys.executable, log=tmp_path / "calls"))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "calls"


def called(calls: Path, name: str) -> list[list[str]]:
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    return [words[1:] for words in found if words[0] == name]


def test_missing_workers_are_an_array_and_the_newest_are_cancelled(tmp_path: Path, calls: Path) -> None:
    folder = tmp_path / "lab"
    found = SlurmProvider(cluster(slurm={"options": ["--partition=gpu"], "notice_seconds": 90}), folder)
    found.check(None)
    folder.mkdir()
    (folder / "slurm.json").write_text('["7_1", "7_0", "7_2"]')
    (folder / "slurm.json").chmod(0o600)
    states = {process.name: (process.state, process.place) for process in found.processes()}
    assert states == {
        "lab-7-0": (ProcessState.RUNNING, "n1"),
        "lab-7-1": (ProcessState.WAITING, "task 7_1"),
        "lab-7-2": (ProcessState.ENDED, "task 7_2"),
    }
    found.scale(4, lambda: "farflung1-secret")
    (words,) = called(calls, "sbatch")
    assert {"--array=0-1", "--partition=gpu", "--signal=TERM@90", "--parsable"} <= set(words)
    assert f"--output={folder}/slurm/%A_%a.log" in words, "else Slurm leaves files where the person works"
    script = (tmp_path / "calls.script").read_text()
    assert "join --memory '1 GB' @" in script
    assert "farflung1-" not in script + "".join(words)
    assert ((folder / "join-ticket").read_text(), (folder / "join-ticket").stat().st_mode & 0o077) == ("farflung1-secret", 0)
    assert json.loads((folder / "slurm.json").read_text()) == ["7_0", "7_1", "8_0", "8_1"]
    found.scale(1, lambda: "none is needed")
    assert called(calls, "scancel") == [["7_1"]], "the one that waits goes first, and those that are over are forgotten"
    with pytest.raises(FarflungError, match="lab-7-0 has not started: see squeue --job=7_0"):
        found.log("lab-7-0", 5, follow=False)
    with pytest.raises(InputError, match="the cluster 'lab' has no process 'x': known are broker, lab-7-0"):
        found.log("x", 5, follow=False)
    assert found.stop(force=False) == []
    assert not (folder / "join-ticket").exists()


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="this machine has no command 'sinfo': install it, or choose another provider"):
        SlurmProvider(cluster(), tmp_path).check(None)


@pytest.mark.launchers
@pytest.mark.timeout(500)
@needs_slurm
def test_from_up_to_a_finished_job_and_a_preemption_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with slurm_nodes(tmp_path / "slurm", 3) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        person = Person(tmp_path)
        (tmp_path / "lab.toml").write_text(FILE)
        (tmp_path / "job.toml").write_text(JOB)
        assert "lab: 3 of 3 workers joined" in person.call("up", "lab.toml")
        folder = tmp_path / "home" / "clusters" / "lab"
        assert set(secrets_in(tmp_path / "home")) == {
            folder / name for name in ("owner-ticket", "join-ticket", "broker/submit-ticket")
        }
        assert "finished after 2 steps" in person.call("submit", "job.toml", "--ticket", f"@{folder}/owner-ticket")
        assert "lab: 3 of 4 workers joined; 1 waits for a machine" in person.call("scale", "lab", "4")
        assert "joined the broker" in person.call("logs", "lab.toml")
        assert "lab: 2 of 2 workers joined" in person.call("scale", "lab", "2")
        urgent = ["sbatch", "--partition=high", "--nodes=3", f"--output={tmp_path}/urgent.log", "--wrap", "sleep 1"]
        subprocess.run(urgent, check=True, capture_output=True)
        found = SlurmProvider(make_cluster({"name": "lab", "provider": "slurm"}), folder)
        until(lambda: {one.state for one in found.processes() if one.name != "broker"} == {ProcessState.ENDED})
        for process in found.processes():
            if process.name != "broker":
                assert f"{process.name}: left" in run_one(found.log(process.name, 5, follow=False)), "it was not killed"
        assert "lab: 3 of 3 workers joined" in person.call("up", "lab.toml")
        assert "lab: stopped" in person.call("down", "lab")
        assert secrets_in(tmp_path / "home") == []
        listed = ["squeue", "--noheader", "--states=running,pending"]
        until(lambda: not subprocess.run(listed, check=True, capture_output=True).stdout)
