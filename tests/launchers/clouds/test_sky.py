"""Provider sky: tasks by SkyPilot's own loader, the script on the machines, and the commands, by a stand-in for sky."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import FarflungError, InputError
from farflung.launchers.base import ProcessState
from farflung.launchers.clouds.sky import SkyProvider
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.programs import run_one, show_all

#: A Python with the package skypilot.
LOADER = os.environ.get("FARFLUNG_SKY_PYTHON") or (sys.executable if find_spec("sky") else "")
#: Loads a task as ``sky jobs launch`` does, and prints what SkyPilot has understood.
LOAD = """
import json, sys
import sky
task = sky.Task.from_yaml_config(json.load(sys.stdin), secrets_overrides=[("FARFLUNG_TICKET", "x")])
found = [(str(one.cloud), one.use_spot, one.accelerators) for one in task.resources]
print(json.dumps([found, sorted(task.envs), sorted(task.secrets), task.run, task.setup], default=str))
"""
#: Writes its words and its ticket to a file, and has jobs.
SKY = """#!{python}
import json, os, sys
with open("{log}", "a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ.get("FARFLUNG_TICKET", "")]) + "\\n")
if "logs" in sys.argv:
    print("joined the broker")
    sys.exit(101 if "farflung-lab-0" in sys.argv else 102)
if "queue" in sys.argv:
    if os.path.exists("{log}.broken"):
        sys.exit(open("{log}.broken").read())
    rows = [(4, "lab-0", "FAILED"), (7, "lab-0", "RUNNING"), (8, "lab-1", "RECOVERING"), (9, "lab-2", "FAILED_SETUP")]
    print("\\x1b[36mstarting the API server\\x1b[0m")
    names = [dict(job_id=number, job_name="farflung-" + name, status=status, infra=None) for number, name, status in rows]
    names[1]["infra"] = "AWS/us-east-1"
    print(json.dumps(names, indent=2))
"""


def cluster(**document: Any) -> ClusterSpec:
    made = {"name": "lab", "provider": "sky", "workers": {"memory": "1 GB"}, "broker": {"advertise": "broker.example.org"}}
    return make_cluster({**made, **document})


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """The file in which a stand-in for ``sky`` writes how it was called."""
    program = tmp_path / "sky"
    program.write_text(SKY.format(python=sys.executable, log=tmp_path / "calls"))
    program.chmod(0o755)
    return tmp_path / "calls"


def provider(calls: Path, *stored: str) -> SkyProvider:
    folder = calls.parent / "folder"
    folder.mkdir(mode=0o700)
    (folder / "sky.json").write_text(json.dumps(stored))
    (folder / "sky.json").chmod(0o600)
    return SkyProvider(cluster(sky={"sky": str(calls.parent / "sky"), "options": ["--priority=7"]}), folder)


def called(calls: Path, name: str) -> list[tuple[list[str], str]]:
    return [
        (words[2:], ticket) for words, ticket in map(json.loads, calls.read_text().splitlines()) if words[:2] == ["jobs", name]
    ]


def loaded(found: ClusterSpec) -> Any:
    task = json.dumps(SkyProvider(found, Path()).task())
    environment = {**os.environ, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [LOADER, "-c", LOAD], input=task, capture_output=True, text=True, check=False, timeout=100, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.launchers
@pytest.mark.timeout(400)
@pytest.mark.skipif(not LOADER, reason="needs skypilot (pip install it, or FARFLUNG_SKY_PYTHON)")
def test_skypilot_understands_the_tasks() -> None:
    workers = {"environment": {"A": "1"}}
    plain, names, secrets, run, setup = loaded(cluster(workers=workers))
    assert plain == [["None", True, None]]
    assert (names, secrets, setup) == (["A", "FARFLUNG_WORKER"], ["FARFLUNG_TICKET"], None)
    assert "farflung join" in run
    resources = {"accelerators": "L4:1", "any_of": [{"infra": "aws"}, {"infra": "gcp", "use_spot": False}]}
    several, *_, setup = loaded(cluster(sky={"resources": resources, "setup": "pip install farflung"}))
    assert sorted(several) == [["AWS", True, {"L4": 1}], ["GCP", False, {"L4": 1}]]
    assert setup == "pip install farflung"
    with pytest.raises(AssertionError, match="use_spott"):
        loaded(cluster(sky={"resources": {"use_spott": True}}))


def test_missing_jobs_are_launched_and_those_that_failed_are_forgotten(calls: Path) -> None:
    found = provider(calls, "farflung-lab-0", "farflung-lab-1", "farflung-lab-2")
    states = {one.name: (one.state, one.place) for one in found.processes()}
    assert states == {
        "lab-0": (ProcessState.RUNNING, "AWS/us-east-1"),
        "lab-1": (ProcessState.WAITING, "job 8"),
        "lab-2": (ProcessState.ENDED, "job 9"),
    }
    found.scale(4, lambda: "farflung1-secret")
    launched = called(calls, "launch")
    assert {ticket for _, ticket in launched} == {"farflung1-secret"}
    words = sorted(words for words, _ in launched)
    path = str(calls.parent / "folder" / "sky.yaml")
    assert words == [
        [*("--yes", "--detach-run", "--name", f"farflung-lab-{index}", "--secret", "FARFLUNG_TICKET"),
         *("--env", f"FARFLUNG_WORKER=lab-{index}", "--priority=7", path)]
        for index in (2, 3)
    ]  # fmt: skip
    assert "farflung1-" not in json.dumps(words) + Path(path).read_text()
    assert json.loads(Path(path).read_text()) == found.task()


def test_jobs_that_wait_for_machines_are_cancelled_first_and_all_at_the_end(calls: Path) -> None:
    found = provider(calls, "farflung-lab-1", "farflung-lab-0")
    found.scale(1, lambda: pytest.fail("no ticket is needed"))
    assert called(calls, "cancel") == [(["--yes", "8"], "")]
    assert [one.name for one in found.processes()] == ["lab-0"]
    found.stop(force=False)
    assert called(calls, "cancel")[1:] == [(["--yes", "7"], "")]
    assert list(found.processes()) == []


def test_logs_are_those_of_a_job(calls: Path) -> None:
    found = provider(calls, "farflung-lab-0", "farflung-lab-1")
    words = found.log("lab-0", 5, follow=False).words
    assert words[1:] == ["jobs", "logs", "--name", "farflung-lab-0", "--tail=5", "--no-follow"]
    with pytest.raises(InputError, match="has no process 'lab-9': known are broker, lab-0, lab-1"):
        found.log("lab-9", 5, follow=True)


def test_the_log_of_a_job_that_runs_is_read_although_sky_ends_with_its_state(calls: Path) -> None:
    found = provider(calls, "farflung-lab-0", "farflung-lab-1")
    runs, unknown = (found.log(name, 5, follow=False) for name in ("lab-0", "lab-1"))
    assert run_one(runs) == "joined the broker\n"
    assert show_all({"runs": runs, "unknown": unknown}, lambda key, line: None) == {"runs": 0, "unknown": 102}
    with pytest.raises(FarflungError, match="failed: joined the broker"):
        run_one(unknown)


def test_what_is_refused_before_anything_is_started(calls: Path) -> None:
    found = provider(calls)
    found.check(None)
    (calls.parent / "calls.broken").write_text("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.")
    found.check(None)
    assert list(found.processes()) == []
    (calls.parent / "calls.broken").write_text("no credentials")
    with pytest.raises(FarflungError, match="SkyPilot: sky jobs queue failed: no credentials"):
        found.check(None)
    assert found.stop(force=True) == ["SkyPilot: sky jobs queue failed: no credentials"]
    with pytest.raises(InputError, match=r"add advertise = \"HOST\" to \[broker\]"):
        SkyProvider(cluster(broker={}), calls.parent).check(None)


#: Writes its words to a file, and ends with the code 0 at SIGTERM, or at once if it was asked to.
WORKER = """#!/bin/sh
trap 'exit 0' TERM
echo "$@ ticket=$FARFLUNG_TICKET" >> "{log}"
[ -e "{log}.ends" ] && exit "$(cat "{log}.ends")"
while :; do sleep 0.1; done
"""


class Machine:
    """The script of a task on a machine, with a stand-in for ``farflung``."""

    def __init__(self, place: Path, info: str, **document: Any) -> None:
        self.log, worker = place / "log", place / "farflung"
        worker.write_text(WORKER.format(log=self.log))
        worker.chmod(0o755)
        (place / "sleep").write_text(
            f'#!/bin/sh\n[ "$1" = 600 ] && echo waits >> {self.log} && exec /bin/sleep 60\nexec /bin/sleep "$1"\n'
        )
        (place / "sleep").chmod(0o755)
        script = SkyProvider(cluster(**document), place).task()["run"]
        environment = {
            "PATH": f"{place}:{os.environ['PATH']}",
            "FARFLUNG_WORKER": "lab-0",
            "FARFLUNG_TICKET": "t",
            "SKYPILOT_CLUSTER_INFO": info,
        }
        self.process = subprocess.Popen(["sh", "-c", script], env=environment, start_new_session=True)

    def until(self, text: str) -> str:
        end = time.monotonic() + 60.0
        while not self.log.exists() or text not in self.log.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        return self.log.read_text()


AWS = json.dumps({"cluster_name": "c", "cloud": "AWS", "region": "us-east-1", "zone": None})


def test_a_worker_knows_its_cloud_and_region_and_drains_when_its_job_is_cancelled(tmp_path: Path) -> None:
    machine = Machine(tmp_path, AWS)
    text = machine.until("ticket=t")
    head, _, rest = text.partition(" --name ")
    name, _, rest = rest.partition(" ")
    assert head == "join --memory 1 GB"
    assert re.fullmatch("lab-0-[0-9a-f]{6}", name)
    assert rest == "--spot-notices aws --region us-east-1 ticket=t\n"
    machine.process.send_signal(signal.SIGTERM)
    assert machine.process.wait(60.0) == 0
    assert "waits" not in machine.log.read_text()


@pytest.mark.parametrize(
    ("info", "workers", "options"),
    [
        ("", {}, ""),
        (json.dumps({"cloud": "Kubernetes", "region": None}), {}, ""),
        (AWS, {"region": "home", "spot_notices": "gcp"}, ""),
    ],
)
def test_options_of_the_file_and_clouds_without_notices(tmp_path: Path, info: str, workers: dict[str, str], options: str) -> None:
    machine = Machine(tmp_path, info, workers=workers)
    text = machine.until("ticket=t")
    assert text.partition(" --name ")[2].partition(" ")[2] == f"{options}ticket=t\n"
    machine.process.send_signal(signal.SIGTERM)
    machine.process.wait(60.0)


def test_after_a_notice_the_job_waits_for_the_end_of_its_machine_and_an_error_ends_it(tmp_path: Path) -> None:
    (tmp_path / "log.ends").write_text("7")
    assert Machine(tmp_path, AWS).process.wait(60.0) == 7
    (tmp_path / "log.ends").write_text("0")
    machine = Machine(tmp_path, AWS)
    machine.until("waits")
    assert machine.process.poll() is None
    os.killpg(machine.process.pid, signal.SIGKILL)
    machine.process.wait(60.0)
